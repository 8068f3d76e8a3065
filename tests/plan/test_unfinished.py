"""What was decided before and is not at its end: after a person has started or paused the run, by tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.events import decided, fold, opened
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.observation import AttemptSeen, JobsSeen, Life, ProcessState, WriterSeen
from sentinel.plan.outcome import Memory, Outcome
from sentinel.plan.restart.actions import StopJob
from sentinel.plan.restart.decision import plan_recovery
from sentinel.plan.restart.rollback import plan_rollback
from sentinel.plan.turn import decide
from tests.plan.looks import look
from tests.support.recovery_plans import BASELINE, DIVERGED, POLICY, incident, run

GONE = ProcessState(life=Life.GONE, sentence="Slurm shows job 34 as FAILED")
OLD = AttemptSeen(number=3, job_id="33_2", process_state=GONE)


def decision(**changed: Any) -> Rollback:
    """As a turn makes it while attempt 3, a task of the array 33, runs."""
    made = plan_recovery(run(attempts=(OLD,), jobs=jobs("33_2", "33_[3-4%1]")), POLICY).decision
    assert made is not None
    return replace(made, **changed)


def jobs(*names: str, rollback: str | None = None) -> JobsSeen:
    return JobsSeen(writers=tuple(WriterSeen(id=name, rollback=rollback) for name in names))


@pytest.mark.parametrize(
    ("attempts", "seen", "asks"),
    [
        ((OLD,), jobs("33_2"), None),  # the job that diverged
        ((OLD, AttemptSeen(number=4, job_id="33_2")), jobs("33_2"), None),  # requeued
        ((OLD, AttemptSeen(number=4, job_id="33_3")), jobs("33_3"), None),  # the array's next task
        ((OLD,), jobs("40"), "40 began after"),  # another job, which has not reported itself
        ((OLD, AttemptSeen(number=4, job_id="40")), jobs("40"), "attempt 4 began after"),
        (
            (OLD, AttemptSeen(number=4, process_state=GONE)),
            jobs(),
            "attempt 4 began after",
        ),  # over; its steps are there
        ((OLD, AttemptSeen(number=4, reported=False, job_id=None)), jobs(), "has not reported its start yet"),
        (
            (OLD, AttemptSeen(number=4, reported=False, process_state=GONE)),
            jobs(),
            None,
        ),  # it died before its first step
    ],
)
def test_what_began_after_the_decision_is_not_stopped_by_it(
    attempts: tuple[AttemptSeen, ...], seen: JobsSeen, asks: str | None
) -> None:
    plan = plan_rollback(decision(), run(attempts=attempts, jobs=seen), POLICY)
    assert (asks is None) == (plan.refusal is None)
    assert asks is None or asks in (plan.refusal or "")


def test_an_own_job_that_a_requeue_of_the_old_one_runs_beside_is_spared_and_a_persons_job_too() -> None:
    ours = WriterSeen(id="41", rollback="incident-1-r1")
    beside = replace(jobs("33_2"), writers=(ours, *jobs("33_2").writers))
    assert plan_rollback(decision(), run(attempts=(OLD,), jobs=beside), POLICY).actions == (
        StopJob(("33_2",), except_for="incident-1-r1"),
    )
    by_hand = replace(beside, writers=(ours, *jobs("50").writers))
    assert "50 began after" in (plan_rollback(decision(), run(attempts=(OLD,), jobs=by_hand), POLICY).refusal or "")


def test_the_incident_log_keeps_what_was_there_at_the_decision() -> None:
    made = decision()
    assert (made.after_attempt, made.known_jobs) == (3, ("33_2", "33_[3-4%1]"))
    events = [opened(1, 3, BASELINE, None, reason="…"), decided("incident-1", made)]
    (found,) = fold(events)
    assert (found.rollbacks[0].after_attempt, found.rollbacks[0].known_jobs) == (3, made.known_jobs)


@pytest.mark.parametrize("mode", ["act", "approve"])
def test_a_newer_attempt_stops_the_completion_and_asks_a_person(mode: Any) -> None:
    half = incident(status="decided", rollbacks=[decision(begun=True)])
    attempts = (OLD, AttemptSeen(number=4, job_id="40"))
    turn = decide(
        look(verdict=DIVERGED, incidents=(half,), attempts=attempts, jobs=jobs("40")), Policy(mode=mode), Memory()
    )
    assert (turn.actions, turn.outcome) == ((), Outcome.PERSON_NEEDED)
    assert [event.kind for event in turn.records] == ["stopped"]


@pytest.mark.parametrize(
    ("after", "moves", "paused", "writers", "carried", "outcome"),
    [
        (1, False, False, ("7",), True, None),
        (0, False, False, ("7",), False, Outcome.PERSON_NEEDED),  # attempt 1 began after it
        (1, False, False, ("8",), False, Outcome.PERSON_NEEDED),  # a job that has not reported itself
        (None, False, False, (), False, Outcome.PERSON_NEEDED),  # an older log: unknown never acts
        (1, False, True, (), False, None),
        (1, True, True, (), True, None),  # half of the files have moved: the run must start from the result
        (1, True, True, ("7",), False, None),
    ],
)
def test_an_undo_that_was_cut_short(
    after: int | None, moves: bool, paused: bool, writers: tuple[str, ...], carried: bool, outcome: Outcome | None
) -> None:
    half = incident(
        status="closed",
        rollbacks=[decision()],
        undoing="incident-1",
        undo_after_attempt=after,
        undo_known_jobs=("7",),
        undo_moves=moves,
    )
    seen = {"attempts": (AttemptSeen(number=1),), "jobs": jobs(*writers), "paused": paused}
    turn = decide(look(verdict=DIVERGED, incidents=(half,), **seen), Policy(mode="act"), Memory())
    assert (bool(turn.undo), turn.outcome) == (carried, outcome)
    if outcome is not None:
        (event,) = turn.records
        told = replace(half, status="stopped", note=event.to_json()["reason"])
        assert not decide(
            look(verdict=DIVERGED, incidents=(told,), **seen), Policy(mode="act"), Memory()
        ).records  # said once


@pytest.mark.parametrize("held", ["paused", "kill_file"])
def test_a_decision_of_which_nothing_has_moved_waits_while_the_run_is_held(held: str) -> None:
    half = incident(status="decided", rollbacks=[decision()])
    seen = look(verdict=DIVERGED, incidents=(half,), attempts=(OLD,), jobs=jobs("33_2"), **{held: True})
    turn = decide(seen, Policy(mode="act"), Memory())
    assert (turn.actions, turn.outcome) == ((), None)
    assert "none of its files has moved" in (turn.message or "")
