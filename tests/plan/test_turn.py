"""Every kind of turn: what is recorded, done, said, and whether the watch is over."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.judge.events import Event as JudgeEvent
from sentinel.judge.events import EventKind
from sentinel.judge.recovery_check import Recovery, RecoveryOutcome
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Mode, Policy
from sentinel.plan.facts import Failure
from sentinel.plan.incident.baseline import Baseline, OnsetReadings
from sentinel.plan.incident.events import decided, fold, opened
from sentinel.plan.incident.incident import Approval, Incident, Proof, Proposal, Rollback, digest_of
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.other_rungs import Wait
from sentinel.plan.observation import AttemptSeen, FileSeen, JobsSeen, Life, ProcessState, StartSeen, WriterSeen
from sentinel.plan.outcome import Memory, Outcome
from sentinel.plan.readings_seen import SpoiltSpan
from sentinel.plan.restart.actions import PrepareJob, QuarantineCheckpoints, StartJob, StopJob, VerifyCheckpoint
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.turn import OLD_AFTER_S, decide, opens_incident
from sentinel.plan.turn_incident import to_preview
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.plan.looks import DOWN, FINISHED, HEALTHY, STALLED, history, look
from tests.support.log_lines import logged
from tests.support.recovery_plans import BASELINE, DIVERGED, checkpoint, decision, incident, run

ACT, APPROVE, OBSERVE = (Policy(mode=mode) for mode in ("act", "approve", "observe"))
RESTART = Policy(mode="act", restart_on_crash=True, restart_on_hang=True)
MADE = decision()
GONE = JobsSeen()
PREPARES = replace(run().jobs, start=StartSeen(prepares=True))
JUST_SAVED = FileSeen(what="mp_rank_00_model_states.pt", age_s=1.0, checkpoint=True)
OURS = JobsSeen(writers=(WriterSeen(id="process 43", rollback=MADE.id),))
SPIKE = Verdict(kind=VerdictKind.SPIKE, reason="the loss left its band")
PENDING = Verdict(kind=VerdictKind.PENDING, reason="the job waits in the queue")
UNKNOWN = JobsSeen(known=False, why_unknown="squeue timed out after 20 s")
DOUBTFUL = {
    "jobs": GONE,
    "attempts": (AttemptSeen(number=1),),
    "files_seen": (FileSeen(what="0001.jsonl", age_s=5.0, attempt=1),),
    "gone_after_s": 600.0,
}
CARRIED_OUT: dict[str, Any] = {
    "latest_tag": MADE.target_tag,
    "overrides": MADE.overrides,
    "tensorboard_past": None,
    "checkpoints": tuple(checkpoint(s) for s in (10, 20, 30)),
}
"""A run whose files are as the decision wants them."""


def rolled(status: str = "decided", **changed: Any) -> Incident:
    """An incident with the rollback."""
    made = replace(MADE, **{"starts": 1, "last_start_unix_s": 1990.0, "last_start_attempt": 1, **changed})
    return incident(status=status, rollbacks=[made])


def starts(*after: int) -> tuple[IncidentEvent, ...]:
    at = {"event": "intent", "action": {"kind": "start_job"}}
    return logged(*({**at, "newest_attempt": number} for number in after))


(HUNG,) = logged({"event": "intent", "newest_attempt": 1, "action": {"kind": "stop_job", "keep_stacks": True}})

PERSON, NOT_WELL = Outcome.PERSON_NEEDED, Outcome.NOT_WELL
BROKEN_OFF = replace(GONE, broken_off="NODE_FAIL")

UNDONE_LATER = replace(incident(status="closed", outcome="undone", attempt=0), undo_after_attempt=1)  # with attempt 1

NO_INCIDENT: list[Any] = [
    (HEALTHY, {}, ACT, [], None, None),
    (SPIKE, {}, ACT, [], None, None),
    (PENDING, {}, ACT, [], None, None),
    (FINISHED, {}, ACT, [], None, Outcome.FINISHED),
    (DIVERGED, {}, ACT, ["opened"], None, None),
    (DIVERGED, {}, OBSERVE, ["opened"], None, None),
    (DIVERGED, {"paused": True}, ACT, ["opened"], None, None),
    (DIVERGED, {"jobs": UNKNOWN}, ACT, ["opened"], None, None),
    (DIVERGED, {"incidents": (incident(status="stopped", note="…"),)}, ACT, [], None, Outcome.PERSON_NEEDED),
    (HEALTHY, {"incidents": (incident(status="stopped", note="…"),)}, ACT, [], None, Outcome.PERSON_NEEDED),
    (DIVERGED, {"incidents": (incident(status="closed", outcome="undone"),)}, ACT, [], None, None),
    (DIVERGED, {"incidents": (incident(status="closed", outcome="undone", attempt=0),)}, ACT, ["opened"], None, None),
    (DIVERGED, {"incidents": (UNDONE_LATER,)}, ACT, [], None, None),
    (DIVERGED, {"incidents": (incident(status="closed", outcome="healed"),)}, ACT, ["opened"], None, None),
    # an undo that was cut short comes before everything else
    (DIVERGED, {"incidents": (rolled(status="closed"),), "undoing": True}, ACT, [], None, None),
    # down
    (DOWN, {"jobs": GONE}, OBSERVE, [], None, None),
    (DOWN, {"jobs": GONE}, APPROVE, [], None, None),
    (DOWN, {"jobs": GONE}, ACT, [], None, None),
    (DOWN, {"jobs": GONE}, RESTART, [], StartJob, None),
    (DOWN, {"jobs": GONE, "paused": True}, RESTART, [], None, None),
    (DOWN, {"jobs": GONE, "kill_file": True}, RESTART, [], None, None),
    (DOWN, {"jobs": UNKNOWN}, RESTART, [], None, None),
    (DOWN, DOUBTFUL, RESTART, [], None, None),
    (DOWN, {}, RESTART, [], None, None),  # something of the job is still alive
    (DOWN, {"jobs": GONE, "checkpoints": (checkpoint(10, verified=None),)}, RESTART, [], VerifyCheckpoint, None),
    (DOWN, {"jobs": GONE, "history": history(ended="stopped")}, RESTART, [], None, None),
    (DOWN, {"jobs": GONE, "history": history(ended="error: OOM")}, RESTART, [], StartJob, None),
    (DOWN, {"jobs": BROKEN_OFF, "history": history(ended="sigterm")}, RESTART, [], StartJob, None),
    (DOWN, {"jobs": GONE, "history": history(ended="sigterm"), "events": (HUNG,)}, RESTART, [], StartJob, None),
    (DOWN, {"jobs": GONE, "events": (HUNG,)}, Policy(mode="act", restart_on_crash=True), [], None, None),
    (DOWN, {"jobs": GONE, "events": starts(1, 1)}, RESTART, [], StartJob, None),
    (DOWN, {"jobs": GONE, "events": starts(1, 1, 1)}, RESTART, [], None, Outcome.PERSON_NEEDED),
    (DOWN, {"jobs": GONE, "events": starts(0, 0, 0), "history": history(saved=(1,))}, RESTART, [], StartJob, None),
    (DOWN, {"jobs": GONE, "starts_unix_s": (1900.0,) * 6}, RESTART, [], None, None),
    (DOWN, {"jobs": replace(GONE, lost={None: "job 5 can't be found"})}, RESTART, [], None, Outcome.PERSON_NEEDED),
    (DOWN, {"jobs": GONE, "overlap": "1 and 2 train"}, RESTART, [], None, None),
    # stalled
    (STALLED, {}, OBSERVE, [], None, None),
    (STALLED, {}, ACT, [], None, None),
    (STALLED, {"silent_s": 500.0}, RESTART, [], None, None),
    (STALLED, {}, RESTART, [], StopJob, None),
    (STALLED, {"jobs": PREPARES}, RESTART, [], PrepareJob, None),
    (STALLED, {"events": starts(1, 1, 1)}, RESTART, [], None, Outcome.PERSON_NEEDED),
    (STALLED, {"paused": True}, RESTART, [], None, None),
]  # fmt: skip


def begun_undo(half: Incident) -> None:
    half.undoing, half.undo_after_attempt, half.undo_known_jobs = "incident-1", 1, ("process 41", "process 42")


def answer_of(verdict: Verdict, seen: dict[str, Any], policy: Policy) -> tuple[list[str], Any, Outcome | None]:
    seen = {"silent_s": 700.0, "stalled_after_s": 600.0, **seen}
    if seen.pop("undoing", False):
        begun_undo(seen["incidents"][0])
    memory = seen.pop("memory", Memory())
    turn = decide(look(verdict=verdict, **seen), policy, memory)
    assert turn.reason
    assert len(turn.actions) <= 1
    return [e.kind for e in turn.records], type(turn.actions[0]) if turn.actions else None, turn.outcome


@pytest.mark.parametrize(("verdict", "seen", "policy", "records", "action", "outcome"), NO_INCIDENT)
def test_a_turn_without_an_open_incident(
    verdict: Verdict, seen: dict[str, Any], policy: Policy, records: list[str], action: Any, outcome: Any
) -> None:
    assert answer_of(verdict, dict(seen), policy) == (records, action, outcome)


WAITING = incident(waits=[Wait(rung="patience", hypothesis="…", from_step=88, until_step=288)])
PERSONS = incident(onset_range=None)
FAILED = incident(rollbacks=[replace(MADE, failed="diverged again")])
SPENT = Policy(mode="act", rollback_budget=0)
SCRIPT = JobsSeen(writers=run().jobs.writers, start=StartSeen(script_baseline=Baseline(clip_grad=1.0)))
UNVERIFIED = {"checkpoints": tuple(checkpoint(s, verified=None) for s in range(10, 90, 10))}
PATIENCE = Policy(mode="act", ladder=(Rung(name="patience", hypothesis="…", wait_steps=9),))
SKIPPED = Policy(mode="observe", ladder=(Rung(name="clip", hypothesis="…", clip_grad_factor=0.5),))

AT_ITS_END = history(ended="finished")
OUR_JOB, MADE_100 = {"jobs": OURS, **CARRIED_OUT}, history({2: 100})

ENDED = (AttemptSeen(number=1, finished=True, process_state=ProcessState(life=Life.GONE, sentence="it has ended")),)
SETTLES = {"jobs": GONE, "quiet_s": 3.0, "files_seen": (JUST_SAVED,), "attempts": ENDED}

OPEN: list[Any] = [
    (incident(), DIVERGED, {}, ACT, ["decided"], StopJob, None),
    (incident(), DIVERGED, {"jobs": PREPARES}, ACT, ["decided"], PrepareJob, None),
    (incident(), DIVERGED, UNVERIFIED, ACT, [], VerifyCheckpoint, None),
    (incident(), DIVERGED, UNVERIFIED, APPROVE, [], VerifyCheckpoint, None),
    (incident(), DIVERGED, UNVERIFIED, OBSERVE, [], VerifyCheckpoint, None),
    (incident(), DIVERGED, {}, APPROVE, ["proposed"], None, None),
    (incident(), DIVERGED, {}, OBSERVE, ["shadow"], None, None),
    (incident(), DIVERGED, SETTLES, OBSERVE, [], None, None),
    (incident(shadows=1), DIVERGED, {}, OBSERVE, [], None, None),
    (incident(shadows=1), DIVERGED, {"history": AT_ITS_END, "jobs": GONE}, OBSERVE, [], None, NOT_WELL),
    (incident(shadows=1), DIVERGED, {"history": AT_ITS_END}, OBSERVE, [], None, None),
    (incident(shadows=1), SPIKE, {"history": AT_ITS_END, "jobs": GONE}, ACT, [], None, None),
    (incident(), DIVERGED, {"jobs": UNKNOWN}, OBSERVE, [], None, None),
    (incident(), DIVERGED, {"jobs": JobsSeen(known=False, elsewhere=True)}, OBSERVE, ["shadow"], None, None),
    (incident(), DIVERGED, {"jobs": UNKNOWN}, ACT, [], None, None),
    (incident(), DIVERGED, DOUBTFUL, ACT, [], None, None),
    (incident(), DIVERGED, {"paused": True}, ACT, [], None, None),
    (incident(), DIVERGED, {"kill_file": True}, ACT, [], None, None),
    (incident(), DIVERGED, {"minute_of_day": 5}, Policy(mode="act", quiet_hours=("22:00-06:00",)), [], None, None),
    (incident(), DIVERGED, {"room_problem": "3 GB are free"}, ACT, [], None, None),
    (incident(), DIVERGED, {"overlap": "1 and 2 train"}, ACT, [], None, None),
    (incident(), DIVERGED, {}, SPENT, ["stopped"], None, PERSON),
    (incident(), DIVERGED, {}, Policy(mode="act", lost_steps_budget=1), ["stopped"], None, PERSON),
    (incident(), DIVERGED, {}, replace(SPENT, mode="observe"), ["shadow"], None, None),
    (incident(), DIVERGED, {}, PATIENCE, ["waiting"], None, None),
    (incident(), DIVERGED, {}, SKIPPED, ["rung_skipped"], None, None),
    (incident(), DIVERGED, {"jobs": SCRIPT}, ACT, ["baseline_completed"], None, None),
    (incident(), HEALTHY, {}, ACT, ["closed"], None, None),
    (incident(), FINISHED, {}, ACT, ["closed"], None, None),
    (incident(), SPIKE, {}, ACT, [], None, None),
    (PERSONS, DIVERGED, {}, ACT, ["closed"], None, None),
    (WAITING, DIVERGED, {"last_step": 200}, ACT, [], None, None),
    (WAITING, DIVERGED, {"last_step": 288}, ACT, ["wait_over"], None, None),
    (WAITING, DOWN, {"jobs": GONE}, RESTART, ["wait_over"], None, None),
    (WAITING, HEALTHY, {}, ACT, ["closed"], None, None),
    (FAILED, HEALTHY, {}, ACT, ["decided"], StopJob, None),  # the rung has failed: health alone is no end of it
    # decided: being carried out
    (rolled(), DIVERGED, {}, ACT, [], StopJob, None),
    (rolled(), DIVERGED, {"jobs": GONE}, APPROVE, [], QuarantineCheckpoints, None),
    (rolled(), DIVERGED, {"jobs": GONE}, OBSERVE, [], None, None),
    (rolled(), DIVERGED, {"jobs": UNKNOWN}, ACT, [], None, None),
    (rolled(), DIVERGED, {"jobs": GONE, **CARRIED_OUT}, ACT, [], StartJob, None),
    (rolled(starts=3), DIVERGED, {"jobs": GONE, **CARRIED_OUT}, ACT, ["stopped"], None, PERSON),
    (rolled(), DIVERGED, {"checkpoints": ()}, ACT, ["stopped"], None, PERSON),
    (rolled(restart=False), DIVERGED, {"jobs": GONE, **CARRIED_OUT}, ACT, ["applied", "closed"], None, None),
    (rolled(), DIVERGED, {"jobs": OURS, **CARRIED_OUT}, ACT, ["applied"], None, None),
    # applied: its start has to be reported
    (rolled("applied"), DIVERGED, OUR_JOB, ACT, [], None, None),
    (rolled("applied", last_start_unix_s=1000.0), DIVERGED, OUR_JOB, ACT, ["stopped"], None, PERSON),
    (rolled("applied"), DIVERGED, {**OUR_JOB, "history": history({1: 9, 2: 99})}, ACT, [], None, None),
    (rolled("applied"), DIVERGED, {**OUR_JOB, "history": history({1: 9, 2: 100})}, ACT, ["stopped"], None, PERSON),
    (rolled("applied", last_start_attempt=None), DIVERGED, {**OUR_JOB, "history": MADE_100}, ACT, [], None, None),
    # what came since may be of the very attempt that has not reported its start
    (rolled("applied"), FINISHED, {"jobs": GONE}, ACT, ["stopped"], None, PERSON),
]  # fmt: skip


@pytest.mark.parametrize(("opened", "verdict", "seen", "policy", "records", "action", "outcome"), OPEN)
def test_a_turn_of_an_open_incident(
    opened: Incident,
    verdict: Verdict,
    seen: dict[str, Any],
    policy: Policy,
    records: list[str],
    action: Any,
    outcome: Any,
) -> None:
    assert answer_of(verdict, {"incidents": (opened,), **seen}, policy) == (records, action, outcome)


def test_hours_in_the_queue_are_no_delay_of_a_start() -> None:
    queued = replace(OURS, writers=(replace(OURS.writers[0], pending=True),))
    late = rolled("applied", last_start_unix_s=0.0)
    seen = {"incidents": (late,), **CARRIED_OUT}
    assert answer_of(DIVERGED, {**seen, "jobs": queued}, ACT) == ([], None, None)
    assert answer_of(DIVERGED, {**seen, "jobs": OURS}, ACT) == (["stopped"], None, Outcome.PERSON_NEEDED)


REPORT = RunStarted(
    attempt=2,
    time_unix_s=1995.0,
    rollback=MADE.id,
    resumed_from=30,
    first_sample_index=30 * 16,
    applied_once=(MADE.id,),
    seed=MADE.overrides.once.seed if MADE.overrides.once else None,
    lr_schedule=MADE.overrides.standing.lr.to_json() if MADE.overrides.standing.lr else None,
    lr=MADE.overrides.standing.lr.lr(step=31) if MADE.overrides.standing.lr else None,
)


@pytest.mark.parametrize(
    ("report", "steps", "seen", "records", "outcome"),
    [
        (REPORT, 2, {}, [], None),
        (REPORT, 3, {}, ["proved"], None),
        (REPORT, 0, {"now_unix_s": 2900.0}, ["proved"], None),
        (REPORT, 0, {"jobs": GONE}, ["proved"], None),
        (replace(REPORT, seed=None), 3, {}, ["not_verified"], None),
        (replace(REPORT, seed=3), 3, {}, ["not_proved", "rung_failed"], None),  # what runs is as before: the next rung
        (replace(REPORT, resumed_from=10), 3, {}, ["not_proved", "opened", "stopped"], Outcome.PERSON_NEEDED),  # worse
        (None, 0, {}, [], None),
    ],
)
def test_a_new_attempt_proves_the_rollback_or_not(
    report: RunStarted | None, steps: int, seen: dict[str, Any], records: list[str], outcome: Any
) -> None:
    made = tuple(Sample(attempt=2, global_step=31 + n, time_unix_s=1.0, loss=3.0) for n in range(steps))
    found = None if report is None else Evidence(started=report, samples=made)
    now = {"jobs": OURS, **CARRIED_OUT, "history": history({1: 9, 2: 3}, started_for={2: MADE.id}), **seen}
    told = {"incidents": (rolled("applied"),), "evidence": found, **now}
    assert answer_of(DIVERGED, told, ACT) == (records, None, outcome)


def test_a_change_without_effect_is_an_incident_of_its_own_once() -> None:
    known = incident(id="incident-2", status="stopped", ignored=MADE.id)
    seen = {"jobs": OURS, **CARRIED_OUT, "history": history({1: 9, 2: 3}, started_for={2: MADE.id})}
    found = Evidence(
        started=replace(REPORT, seed=3), samples=(Sample(attempt=2, global_step=31, time_unix_s=1.0, loss=3.0),) * 3
    )
    told = {"incidents": (rolled("applied"), known), "evidence": found}
    policy = replace(ACT, on_contradicted="stop")
    assert answer_of(DIVERGED, {**seen, **told}, policy)[0] == ["not_proved", "stopped"]
    told["incidents"] = (rolled("applied"),)
    assert answer_of(DIVERGED, {**seen, **told}, policy)[0] == ["not_proved", "opened", "stopped"]


def test_a_persons_own_rollback_that_is_contradicted_stops_and_tries_no_rung() -> None:
    seen = {"jobs": OURS, **CARRIED_OUT, "history": history({1: 9, 2: 3}, started_for={2: MADE.id})}
    made = (Sample(attempt=2, global_step=31, time_unix_s=1.0, loss=3.0),) * 3
    found, by_hand = (
        Evidence(started=replace(REPORT, seed=3), samples=made),
        replace(rolled("applied"), onset_range=None),
    )
    told = {"incidents": (by_hand,), "evidence": found}
    assert answer_of(HEALTHY, {**seen, **told}, ACT)[0] == ["not_proved", "opened", "stopped"]


def test_a_contradicted_rung_is_recorded_as_not_taken_and_the_next_one_is_decided() -> None:
    seen = {"jobs": OURS, **CARRIED_OUT, "history": history({1: 9, 2: 3}, started_for={2: MADE.id})}
    made = (Sample(attempt=2, global_step=31, time_unix_s=1.0, loss=3.0),) * 3
    found = Evidence(started=replace(REPORT, seed=3), samples=made)
    told = {"incidents": (rolled("applied"),), "evidence": found}
    turn = decide(look(verdict=DIVERGED, **seen, **told), ACT, Memory())
    log = [opened(1, 1, BASELINE, None, reason="…"), decided("incident-1", MADE), *turn.records]
    (after,) = fold(log)
    assert (after.status, len(after.tried), after.rollbacks[0].proof) == ("open", 1, Proof.CONTRADICTED)
    assert (after.rollbacks[0].result or "").startswith("did not take effect: seed")


NOT_YET, RECOVERED, HELD, NOT_AT_ALL = (Recovery(answer=a, reason="…") for a in RecoveryOutcome)


@pytest.mark.parametrize(
    ("of", "verdict", "seen", "policy", "records", "action"),
    [
        ({}, HEALTHY, {"recovery": RECOVERED}, ACT, ["closed"], None),
        ({}, HEALTHY, {"recovery": HELD}, ACT, ["closed"], None),
        ({}, HEALTHY, {"recovery": NOT_YET}, ACT, [], None),
        ({}, HEALTHY, {"recovery": NOT_AT_ALL}, ACT, ["rung_failed"], None),
        ({}, HEALTHY, {}, ACT, [], None),
        ({}, HEALTHY, {"recovery": RECOVERED}, OBSERVE, ["closed"], None),
        ({}, DIVERGED, {"recovery": RECOVERED}, ACT, ["rung_failed"], None),
        ({}, HEALTHY, {"recovery": RECOVERED, "history": history()}, ACT, [], None),  # it is not the rollback's own
        ({"onset_range": None}, HEALTHY, {}, ACT, ["closed"], None),
        ({"onset_range": None}, DIVERGED, {}, ACT, ["rung_failed"], None),
        ({}, DOWN, {"jobs": GONE}, ACT, [], None),
        ({}, DOWN, {"jobs": GONE}, RESTART, [], StartJob),
        ({}, STALLED, {}, RESTART, [], StopJob),
        ({}, STALLED, {}, OBSERVE, [], None),
    ],
)
def test_a_restart_is_waited_for_until_it_has_recovered_or_failed(
    of: dict[str, Any], verdict: Verdict, seen: dict[str, Any], policy: Policy, records: list[str], action: Any
) -> None:
    held = replace(rolled("holding", proof=Proof.CONFIRMED), **of)
    now = {"jobs": OURS, **CARRIED_OUT, "history": history({1: 9, 2: 3}, started_for={2: MADE.id}), **seen}
    assert answer_of(verdict, {"incidents": (held,), **now}, policy) == (records, action, None)


def test_a_restart_after_a_crash_goes_on_from_what_the_rollback_has_saved() -> None:
    held = rolled("holding", proof=Proof.CONFIRMED)
    saved = (*CARRIED_OUT["checkpoints"], checkpoint(40))
    now = {**CARRIED_OUT, "jobs": GONE, "incidents": (held,), "checkpoints": saved, "latest_tag": "global_step40"}
    turn = decide(look(verdict=DOWN, **now), RESTART, Memory())
    assert turn.actions == (StartJob("incident-1", MADE.id, follow_up=True),)
    assert (turn.incident, turn.rollback) == (None, None)  # in the log it is no part of the incident's story


def approved(made: Rollback, **changed: Any) -> dict[str, Any]:
    """An incident whose proposal is this decision, with a person's yes to it."""
    digest = digest_of(made)
    proposal = Proposal(**{"digest": digest, "proposed_unix_s": 1990.0, **changed})
    yes = {"incident-1": Approval(digest=digest, by="ada@login1", time_unix_s=1995.0)}
    return {"incidents": (incident(proposal=proposal),), "approvals": yes}


READ_AGAIN = Memory(verified_for=frozenset({digest_of(MADE)}))


@pytest.mark.parametrize(
    ("seen", "records", "action"),
    [
        ({}, [], VerifyCheckpoint),  # their yes may be hours old
        ({"memory": READ_AGAIN}, ["approved", "decided"], StopJob),
        ({"approvals": {}}, [], None),
        ({"approvals": {}, "now_unix_s": 1990.0 + 14_401}, ["expired"], None),
        ({"memory": READ_AGAIN, "now_unix_s": 1990.0 + 14_401}, ["approved", "decided"], StopJob),
        ({"memory": READ_AGAIN, "paused": True}, [], None),
        ({**approved(MADE, expired=True), "memory": READ_AGAIN}, [], None),
        ({**approved(MADE, digest="of another plan"), "memory": READ_AGAIN}, ["proposed"], None),
        ({"memory": READ_AGAIN, "approvals": {"incident-1": Approval(digest="…", by="…", time_unix_s=0)}}, [], None),
    ],
)
def test_a_proposal_is_done_once_a_person_agrees_to_just_that(
    seen: dict[str, Any], records: list[str], action: Any
) -> None:
    assert answer_of(DIVERGED, {**approved(MADE), **seen}, APPROVE) == (records, action, None)


def test_the_target_is_read_once_more_for_an_approval_and_that_is_remembered_once_it_is_done() -> None:
    found = look(verdict=DIVERGED, **approved(MADE))
    turn = decide(found, APPROVE, Memory())
    assert turn.memory.verified_for == {digest_of(MADE)}
    failed = decide(found.changed(failure=Failure(reason="stale file handle")), APPROVE, Memory())
    assert (failed.actions, failed.memory.verified_for) == ((), frozenset())


@pytest.mark.parametrize("mode", ["observe", "approve", "act"])
def test_a_rung_that_the_job_script_can_not_carry_is_skipped(mode: Mode) -> None:
    jobs = replace(run().jobs, start=StartSeen(rewrites_script=True, carries=frozenset({"seed"})))
    found, policy = look(verdict=DIVERGED, incidents=None, jobs=jobs), Policy(mode=mode)
    made = to_preview(found, policy)
    assert made is not None
    refused = found.changed(previews={digest_of(made): "line 7: --seed is not there"})
    assert to_preview(refused, policy) is None
    (skip,) = decide(refused, policy, Memory()).records
    assert (skip.kind, skip.to_json()["reason"]) == ("rung_skipped", "line 7: --seed is not there")
    taken = found.changed(previews={digest_of(made): None})
    assert to_preview(taken, policy) is None
    assert "rung_skipped" not in [e.kind for e in decide(taken, policy, Memory()).records]


def test_nothing_is_tried_on_a_job_script_that_is_not_rewritten_or_has_nothing_to_carry() -> None:
    assert to_preview(look(verdict=DIVERGED, incidents=None), ACT) is None
    jobs = replace(run().jobs, start=StartSeen(rewrites_script=True, carries=frozenset({"seed"})))
    assert to_preview(look(verdict=HEALTHY, jobs=jobs), ACT) is None
    assert to_preview(look(verdict=DIVERGED, jobs=jobs, incidents=(rolled(),)), ACT) is None


@pytest.mark.parametrize("mode", ["observe", "approve", "act"])
def test_an_undo_that_was_cut_short_is_carried_to_its_end_in_mode_act(mode: Mode) -> None:
    half = rolled(status="closed")
    begun_undo(half)
    turn = decide(look(verdict=DIVERGED, incidents=(half,)), Policy(mode=mode), Memory())
    assert (turn.undo, turn.pins) == ((half,) if mode == "act" else (), None)
    assert (turn.message is None) is (mode == "act")
    assert not turn.records


def test_an_incident_is_opened_with_the_readings_of_its_onset() -> None:
    found = look(verdict=DIVERGED, onset=OnsetReadings(best_mean=3.6, onset_tokens=9, onset_samples=7))
    assert opens_incident(found)
    (opened,) = decide(found, OBSERVE, Memory()).records
    assert {
        k: getattr(opened, k)
        for k in ("incident", "attempt", "onset_range", "best_mean", "onset_tokens", "onset_samples")
    } == {
        "incident": "incident-1",
        "attempt": 1,
        "onset_range": (47, 49),
        "best_mean": 3.6,
        "onset_tokens": 9,
        "onset_samples": 7,
    }


def test_a_look_that_hung_is_looked_at_again_once_and_not_at_first() -> None:
    slow = look(verdict=DIVERGED, took_s=OLD_AFTER_S + 1)
    first = decide(slow, ACT, Memory())
    assert [e.kind for e in first.records] == ["opened"]
    again = decide(slow, ACT, first.memory)
    assert (again.records, again.alerts, again.memory.looked_again) == ((), (), True)
    assert "looking took 61 s" in again.notes[-1]
    third = decide(slow, ACT, again.memory)
    assert ([e.kind for e in third.records], third.memory.looked_again) == (["opened"], False)


def test_a_failure_that_needs_a_person_stops_the_incident_and_without_one_the_watch() -> None:
    hopeless = Failure(reason="sbatch: invalid account", permanent=True)
    turn = decide(look(verdict=DIVERGED, incidents=None, failure=hopeless), ACT, Memory())
    assert ([e.kind for e in turn.records], turn.outcome) == (["stopped"], Outcome.PERSON_NEEDED)
    alone = decide(look(verdict=DOWN, failure=hopeless), ACT, Memory())
    assert (alone.records, alone.outcome) == ((), None)


def test_a_turn_that_failed_does_nothing_more() -> None:
    turn = decide(look(verdict=DIVERGED, incidents=None, failure=Failure(reason="squeue timed out")), ACT, Memory())
    assert (turn.records, turn.actions, turn.outcome, turn.message) == ((), (), None, None)
    assert turn.failing


NOT_AUDITED = SpoiltSpan(first_step=61, last_step=1060, reason="the audit of its start is not over", pending=True)


@pytest.mark.parametrize(
    ("verdict", "policy", "seen", "tag"),
    [
        (HEALTHY, ACT, {}, "global_step70"),
        (FINISHED, APPROVE, {}, "global_step70"),
        (HEALTHY, OBSERVE, {}, None),
        (HEALTHY, Policy(mode="act", pin_last_healthy=False, warn="off"), {}, None),
        (HEALTHY, ACT, {"incidents": None}, None),
        (SPIKE, ACT, {}, None),
        (HEALTHY, ACT, {"checkpoints": (checkpoint(70, complete=False), checkpoint(60))}, "global_step60"),
        (HEALTHY, ACT, {"checkpoints": (checkpoint(80),)}, ""),
        (
            HEALTHY,
            ACT,
            {"checkpoints": (checkpoint(60), checkpoint(70)), "spoilt_spans": (NOT_AUDITED,)},
            "global_step60",
        ),
    ],
)
def test_the_checkpoint_that_is_pinned_is_the_newest_whole_one_left_behind_in_health(
    verdict: Verdict, policy: Policy, seen: dict[str, Any], tag: str | None
) -> None:
    """None: the pins stay as they are."""
    found = look(verdict=verdict, judged_step=85, **seen)
    assert decide(found, policy, Memory()).pins == (None if tag is None else tuple(filter(None, (tag,))))


def test_a_verdict_and_a_plateau_are_logged_once() -> None:
    plateau = JudgeEvent(
        kind=EventKind.PLATEAU,
        onset_range=(40, 40),
        verdict_step=60,
        end_step=None,
        recommend_rollback=False,
        reason="20 % above its sibling",
    )
    found = look(series=SimpleNamespace(events=(plateau,), last=None, logit_warning=None))
    first = decide(found, ACT, Memory())
    assert first.notes == (
        "attempt 1 is healthy: the loss is inside its own noise band",
        "slower than it should be, for a person to look at: 20 % above its sibling",
    )
    assert decide(found, ACT, first.memory).notes == ()
    then = decide(found.changed(verdict=SPIKE), ACT, first.memory)
    assert then.notes == ("attempt 1 is spike: the loss left its band",)


STATUSES = ("open", "decided", "applied", "holding", "stopped", "closed", None)


@pytest.mark.parametrize("held", [{}, {"paused": True}, {"kill_file": True}, DOUBTFUL, {"jobs": UNKNOWN}])
@pytest.mark.parametrize("mode", ["observe", "approve", "act"])
def test_while_a_person_or_a_doubt_holds_it_nothing_of_the_run_is_touched(mode: Mode, held: dict[str, Any]) -> None:
    policy = Policy(mode=mode, restart_on_crash=True, restart_on_hang=True)
    for kind, status in product(VerdictKind, STATUSES):
        incidents = () if status is None else (rolled(status) if status != "open" else incident(),)
        verdict = Verdict(kind=kind, reason="…", onset_range=(47, 49), alarm_step=88)
        seen = {"incidents": incidents, "silent_s": 700.0, "stalled_after_s": 600.0, **held}
        turn = decide(look(verdict=verdict, **seen), policy, Memory())
        assert turn.reason
        if mode == "observe":
            assert all(isinstance(action, VerifyCheckpoint) for action in turn.actions)
        if "jobs" in held:  # its life is unknown
            assert not turn.actions
        if held and status not in ("decided", "applied"):  # what was decided before a pause is carried to its end
            assert not turn.actions
