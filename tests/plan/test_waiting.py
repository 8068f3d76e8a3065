"""Rungs that start nothing: one that watches whether the run recovers, one that asks for a person."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.alerts.sentences import sentence
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Mode, Policy
from sentinel.plan.incident import events
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.incident.other_rungs import Wait
from sentinel.plan.observation import JobsSeen, StartSeen
from sentinel.plan.outcome import Memory, Outcome
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand
from sentinel.plan.restart.decision import decide_rung, has_not_healed, onset_past, plan_recovery
from sentinel.plan.turn import decide
from sentinel.vocabulary.numbers import dump_json, load_object
from tests.support.recovery_plans import DIVERGED, decision, incident, run

PATIENCE = Rung(name="patience", hypothesis="it heals by itself", wait_steps=200)
RESEED = Rung(name="reseed", hypothesis="the order of the data did it", reseed=True)
PAGE = Rung(name="the model", hypothesis="the model's shape is wrong", page=True)
HEALTHY = Verdict(kind=VerdictKind.HEALTHY, reason="the loss is inside its own noise band")


class Watched:
    """A watch whose incident log is a list, and whose run is what the test says."""

    def __init__(self, *ladder: Rung, mode: Mode = "act") -> None:
        self.events: list[IncidentEvent] = []
        self._policy = Policy(mode=mode, ladder=ladder)
        opened = events.opened(1, 1, incident().baseline, None, reason="it does not come back", verdict=DIVERGED)
        self._append(replace(opened, best_mean=3.6))

    def _append(self, event: IncidentEvent) -> None:
        self.events.append(event_of(load_object(dump_json(replace(event, time_unix_s=7.0).to_json()))))

    @property
    def incident(self) -> Incident:
        (only,) = fold(self.events)
        return only

    def turn(self, verdict: Verdict, **state: Any) -> Outcome | None:
        facts = run(verdict=verdict, incidents=(self.incident,), events=tuple(self.events), **state)
        turn = decide(facts, self._policy, Memory())
        for record in turn.records:
            self._append(record)
        assert not turn.actions, "nothing is done while it waits"
        return turn.outcome

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1].to_json()


def test_a_wait_is_recorded_and_has_no_actions() -> None:
    plan = decide_rung(incident(), run(last_step=90), Policy(ladder=(PATIENCE,), rollback_budget=0))
    assert (plan.actions, plan.decision, plan.refusal) == ((), None, None)
    assert plan.wait is not None
    assert (plan.wait.rung, plan.wait.from_step, plan.wait.until_step) == ("patience", 90, 290)
    assert plan.reason == "watch until step 290 whether the run recovers by itself"


@pytest.mark.parametrize("mode", ["observe", "approve", "act"])
def test_a_run_that_heals_meanwhile_closes_the_incident(mode: Mode) -> None:
    watched = Watched(PATIENCE, RESEED, mode=mode)
    assert watched.turn(DIVERGED, last_step=90) is None
    assert (watched.last["event"], watched.last["until_step"]) == ("waiting", 290)
    assert watched.turn(DIVERGED, last_step=289) is None
    assert watched.turn(Verdict(kind=VerdictKind.SPIKE, reason="…"), last_step=400) is None
    assert watched.last["event"] == "waiting"
    assert watched.turn(HEALTHY, last_step=401) is None
    assert (watched.incident.status, watched.incident.outcome) == ("closed", "healed")


def test_a_run_that_does_not_heal_gets_the_next_rung_without_a_rollback_spent() -> None:
    watched = Watched(PATIENCE, PAGE)
    watched.turn(DIVERGED, last_step=90)
    assert watched.incident.waiting is not None
    watched.turn(DIVERGED, last_step=290)
    assert watched.last["event"] == "wait_over"
    assert watched.last["reason"] == "still diverged at step 290: it does not come back"
    assert (watched.incident.waiting, len(watched.incident.tried), watched.incident.rollbacks) == (None, 1, [])
    assert watched.turn(DIVERGED, last_step=291) is Outcome.PERSON_NEEDED
    assert watched.last["reason"] == "rung 'the model' asks for a person; its hypothesis: the model's shape is wrong"


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_a_baseline_that_lacks_the_job_script_is_completed_before_anything_is_decided(mode: Mode) -> None:
    """Slurm did not answer at the alarm. A rung that needs what only the script says would be refused for good."""
    watched = Watched(Rung(name="beta2", hypothesis="…", clip_grad_factor=0.5), mode=mode)
    told = len(watched.events)
    away = JobsSeen(known=False, why_unknown="squeue timed out after 20 s")
    assert watched.turn(DIVERGED, jobs=away) is None
    assert len(watched.events) == told  # neither refused nor shadowed
    script = Baseline(clip_grad=1.0, adam_beta2=0.95, seed=77)
    there = JobsSeen(writers=run().jobs.writers, start=StartSeen(script_baseline=script))
    assert watched.turn(DIVERGED, jobs=there) is None
    assert watched.last["event"] == "baseline_completed"
    assert "job script" in (sentence(watched.events[-1]) or "")
    known = watched.incident.baseline
    assert (known.clip_grad, known.adam_beta2, known.seed) == (1.0, 0.95, 3)  # what the trainer reported stands
    if mode == "act":
        with pytest.raises(AssertionError, match="nothing is done"):  # the decision's first action
            watched.turn(DIVERGED, jobs=there)
        decided = next(e.to_json() for e in watched.events if e.kind == "decided")
        assert decided["overrides"]["standing"]["clip_grad"] == 0.5
    else:
        watched.turn(DIVERGED, jobs=there)
        assert (watched.last["event"], watched.last["refusal"]) == ("shadow", None)


def test_the_rung_after_a_wait_is_decided_as_if_it_were_the_first() -> None:
    waited = replace_waits(incident())
    made = decide_rung(waited, run(incidents=(waited,)), Policy(ladder=(PATIENCE, RESEED))).decision
    assert made is not None
    assert (made.rung, made.id) == ("reseed", "incident-1-r1")
    spent = decide_rung(waited, run(incidents=(waited,)), Policy(ladder=(PATIENCE,)))
    assert spent.refusal == ("the ladder's 1 rungs are used up: 1 tried without recovery, 0 could not be carried out")


def replace_waits(opened: Incident) -> Incident:
    plan = decide_rung(opened, run(), Policy(ladder=(PATIENCE,)))
    assert plan.wait is not None
    return replace(opened, waits=[replace(plan.wait, failed="still diverged")])


def test_a_job_that_is_gone_can_not_heal() -> None:
    watched = Watched(PATIENCE, PAGE)
    watched.turn(DIVERGED, last_step=90)
    watched.turn(DIVERGED, last_step=100, jobs=JobsSeen(known=False))  # nobody knows: it may be alive
    assert watched.last["event"] == "waiting"
    watched.turn(Verdict(kind=VerdictKind.DOWN, reason="no process is left"), last_step=100, jobs=JobsSeen())
    assert watched.last["reason"] == "the job is gone before step 290: no process is left"


def test_a_wait_after_a_rung_that_failed_can_heal_too() -> None:
    failed = incident(rollbacks=[replace(decision(), failed="diverged again")])
    plan = decide_rung(failed, run(incidents=(failed,), last_step=140), Policy(ladder=(RESEED, PATIENCE)))
    assert plan.wait is not None
    failed.waits.append(plan.wait)
    assert plan_recovery(run(incidents=(failed,)), Policy()).reason.startswith("'patience' watches until")


@pytest.mark.parametrize("mode", ["observe", "approve"])
def test_a_rung_that_can_not_be_carried_out_is_skipped_on_the_record_and_the_next_one_is_tried(mode: Mode) -> None:
    skip_data = Rung(name="skip data", hypothesis="a bad batch did it", skip_samples="past_onset")
    watched = Watched(skip_data, RESEED, mode=mode)
    watched.turn(DIVERGED)
    assert {k: watched.last[k] for k in ("event", "rung", "hypothesis")} == {
        "event": "rung_skipped",
        "rung": "skip data",
        "hypothesis": "a bad batch did it",
    }
    assert "consumed_samples at the onset is unknown" in watched.last["reason"]
    assert sentence(watched.events[-1]) == f"rung 'skip data' is skipped: {watched.last['reason']}"
    assert (len(watched.incident.tried), watched.incident.rollbacks, len(watched.incident.skips)) == (1, [], 1)
    watched.turn(DIVERGED)
    follows = {"observe": "shadow", "approve": "proposed"}[mode]
    decided = next(event.to_json() for event in watched.events if event.kind == follows)
    assert (decided["rung"], decided["rollback"]) == ("reseed", "incident-1-r1")


def test_a_ladder_of_which_no_rung_can_be_carried_out_ends_with_a_person() -> None:
    watched = Watched(Rung(name="skip data", hypothesis="…", skip_samples="past_onset"))
    watched.turn(DIVERGED)
    assert watched.turn(DIVERGED) is Outcome.PERSON_NEEDED
    said = "the ladder's 1 rungs are used up: 0 tried without recovery, 1 could not be carried out"
    assert watched.last["reason"] == said


def test_in_mode_observe_it_watches_and_then_says_what_it_would_do() -> None:
    watched = Watched(PATIENCE, RESEED, mode="observe")
    watched.turn(DIVERGED, last_step=90)
    watched.turn(DIVERGED, last_step=290)
    watched.turn(DIVERGED, last_step=291)
    assert (watched.last["event"], watched.last["rung"]) == ("shadow", "reseed")


def test_waits_are_told_as_sentences() -> None:
    watched = Watched(PATIENCE, PAGE)
    watched.turn(DIVERGED, last_step=90)
    watched.turn(DIVERGED, last_step=290)
    told = [sentence(event) for event in watched.events[1:]]
    assert told == [
        "'patience' watches until step 290; hypothesis: it heals by itself",
        "'patience' did not help: still diverged at step 290: it does not come back",
    ]


@pytest.mark.parametrize("name", ["patience", "the model"])
def test_a_rung_that_starts_nothing_is_no_rollback_by_hand(name: str) -> None:
    plan = plan_by_hand(ManualRollback(to="global_step30", rung=name), run(), Policy(ladder=(PATIENCE, PAGE)))
    assert plan.refusal == f"rung {name!r} starts nothing: there is nothing to apply at a restart"


PAST = Rung(name="skip", hypothesis="a few batches did it", skip_samples="past_onset")


def test_the_data_of_the_onset_is_skipped_from_the_target_to_the_margin_past_it() -> None:
    diverged = incident(onset_samples=49 * 16, batch_samples=16)
    policy = Policy(ladder=(PAST,), margin_steps=10)
    assert onset_past(diverged, policy) == 59 * 16
    made = decide_rung(diverged, run(incidents=(diverged,)), policy).decision
    assert made is not None
    assert made.target_step == 30
    assert made.overrides.once is not None
    assert made.overrides.once.skip_samples == (59 - 30) * 16
    assert made.changes == ("464 samples of the data skipped: 480 to 943",)
    assert set(made.unconfirmed) == {"skipped_samples"}


def test_without_a_count_of_samples_the_rung_is_skipped() -> None:
    plan = decide_rung(incident(), run(), Policy(ladder=(PAST,)))
    assert plan.skip is not None
    assert plan.skip.reason == "rung 'skip' skips data past the onset, and consumed_samples at the onset is unknown"


def test_by_hand_the_onset_is_that_of_the_verdict_and_a_seed_adds_to_the_rung() -> None:
    plan = plan_by_hand(ManualRollback(to="global_step40", rung="skip", seed=9), run(), Policy(ladder=(PAST,)))
    assert plan.decision is not None
    once = plan.decision.overrides.once
    assert once is not None
    assert (once.seed, once.skip_samples) == (9, (59 - 40) * 16)


@pytest.mark.parametrize(
    ("last_step", "verdict", "over"),
    [(None, DIVERGED, False), (299, DIVERGED, False), (300, DIVERGED, True), (300, HEALTHY, False)],
)
def test_a_wait_has_not_helped_where_its_last_step_is_still_diverged(
    last_step: int | None, verdict: Verdict, over: bool
) -> None:
    wait = Wait(rung="patience", hypothesis="it heals by itself", from_step=100, until_step=300)
    assert (has_not_healed(wait, run(last_step=last_step).changed(verdict=verdict)) is not None) is over
