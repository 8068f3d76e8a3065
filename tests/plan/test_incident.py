"""The incident log's grammar: the fold tells where each incident stands, from what is written and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from sentinel.act.perform import Ledger
from sentinel.act.undo import undo_incident
from sentinel.judge.analysis.first_mover import SIGNALS, moved_before
from sentinel.judge.readings import stretches_of
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.alerts.page import page_for
from sentinel.plan.alerts.sentences import sentence, story
from sentinel.plan.incident import events
from sentinel.plan.incident.baseline import Baseline, onset_readings
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident, Proof
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.incident.log_outcomes import Applied, Closed, IncidentStopped
from sentinel.plan.restart.actions import QuarantineCheckpoints, StartJob, to_json
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.starts.proof import Check, ignored, outcome, proof_event, prove
from sentinel.vocabulary.errors import ConfigError, IncidentLogError
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.support.decisions import DECISION, LR, SEQLEN
from tests.support.log_lines import logged

STARTED = RunStarted(
    attempt=2,
    time_unix_s=9.0,
    resumed_from=10,
    incident="incident-1",
    rollback="incident-1-r1",
    applied_once=("incident-1-r1",),
    seed=4,
    first_sample_index=160,
    consumed_tokens=20480,
    lr=LR.lr(step=11),
    lr_schedule=LR.to_json(),
    seqlen=8,
    seqlen_schedule=SEQLEN.to_json(),
)


class Book:
    """A ledger that writes to a list, through JSON, as the file would."""

    def __init__(self) -> None:
        self.events: list[IncidentEvent] = []
        self.said: list[str] = []
        self.ledger = Ledger(self._append, clock=lambda: 7.0, say=self.said.append)

    def _append(self, event: IncidentEvent) -> None:
        self.events.append(event_of(load_object(dump_json(event.to_json()))))

    def write(self, **line: Any) -> None:
        """An event as a line has it."""
        self.ledger.record(*logged({"incident": "incident-1", **line}))

    @property
    def incident(self) -> Incident:
        (only,) = fold(self.events)
        return only

    def open(self) -> None:
        samples = [
            Sample(attempt=1, global_step=s, time_unix_s=0.0, loss=3.0, consumed_tokens=s * 10) for s in range(1, 60)
        ]
        verdict = Verdict(kind=VerdictKind.DIVERGED, reason="it stays up", onset_range=(47, 49), alarm_step=88)
        baseline, onset = Baseline(seed=3, lr=LR), onset_readings(samples, (47, 49), None)
        self.ledger.record(events.opened(1, 1, baseline, None, reason="it stays up", verdict=verdict, onset=onset))


def test_what_led_is_found_once_and_is_the_same_wherever_the_incident_is_read() -> None:
    """The gradient leaves its noise at step 1451, the loss at 1490: what is recorded, told, paged and folded."""
    rng = random.Random(0)
    samples = [
        Sample(
            attempt=1, global_step=s, time_unix_s=0.0, loss=3 + rng.gauss(0, 0.01) + (s >= 1490),
            grad_norm=1 + rng.gauss(0, 0.05) + 2 * (s > 1450), update_norm=1 + rng.gauss(0, 0.05),
        )
        for s in range(1, 1600)
    ]  # fmt: skip
    verdict = Verdict(kind=VerdictKind.DIVERGED, reason="it stays up", onset_range=(1490, 1500), alarm_step=1590)
    onset = onset_readings(samples, (1490, 1500), None)
    assert onset.moved_first == moved_before(stretches_of(samples, SIGNALS), (1490, 1500))
    book = Book()
    book.ledger.record(events.opened(1, 1, Baseline(), None, reason="it stays up", verdict=verdict, onset=onset))
    assert book.incident.moved_first == onset.moved_first
    assert book.incident.leading.led_by == ("grad_norm",)
    (led,) = book.incident.moved_first.leading
    assert (led.first_step, led.steps_before_onset) == (1451, 49)
    page = page_for(book.events[0], "tr8")
    assert page is not None
    assert book.incident.moved_first.sentence in page.summary
    assert page.details["led_by"] == ["grad_norm"]


def test_the_story_of_an_incident_is_told_by_its_events_alone() -> None:
    book = Book()
    book.open()
    opened = book.incident
    assert (opened.status, opened.onset_range, opened.onset_tokens, opened.best_mean) == ("open", (47, 49), 490, 3.0)
    assert (opened.leading.led_by, opened.baseline, opened.current) == ((), Baseline(seed=3, lr=LR), None)
    book.ledger.record(events.decided("incident-1", DECISION))
    assert book.incident.status == "decided"
    assert book.incident.current == DECISION
    for action in (
        QuarantineCheckpoints(("global_step20",), "incident-1", DECISION.id),
        StartJob("incident-1", DECISION.id),
    ):
        book.write(event="intent", rollback=DECISION.id, action=to_json(action))
    current = book.incident.current
    assert current is not None
    assert (current.moved_tags, current.starts, current.last_start_unix_s) == (("global_step20",), 1, 7.0)
    book.ledger.record(Applied(incident="incident-1", rollback=DECISION.id))
    assert book.incident.status == "applied"
    checks = prove(DECISION, Evidence(started=STARTED))
    assert outcome(checks) is Proof.CONFIRMED
    book.ledger.record(proof_event(DECISION, 2, checks))
    assert book.incident.status == "holding"
    book.ledger.record(
        events.rung_failed(DECISION, 2, "diverged again", Verdict(kind=VerdictKind.DIVERGED, reason="…"))
    )
    assert (book.incident.status, book.incident.current) == ("open", None)
    book.ledger.record(IncidentStopped(incident="incident-1", reason="the budget is spent"))
    assert (book.incident.status, book.incident.note) == ("stopped", "the budget is spent")
    book.ledger.record(Closed(incident="incident-1", outcome="undone", reason="a person took it back"))
    assert (book.incident.status, book.incident.outcome) == ("closed", "undone")


def test_a_restart_after_a_crash_belongs_to_no_incident() -> None:
    event = {"event": "intent", "incident": None, "rollback": None, "time_unix_s": 1.0, "action": {"kind": "start_job"}}
    assert fold(logged(event)) == ()


@pytest.mark.parametrize(
    "event",
    [
        {"event": "decided", "incident": "incident-9", "time_unix_s": 1.0},
        {"event": "opened", "incident": "incident-1", "time_unix_s": 1.0},
        {"event": "applied", "incident": "incident-1", "time_unix_s": 1.0, "rollback": 7},
    ],
)
def test_an_event_that_makes_no_sense_is_not_guessed_at(event: dict[str, Any]) -> None:
    with pytest.raises(IncidentLogError, match="event 1"):
        fold([event_of(event)])


def test_a_report_that_is_what_was_decided_proves_it() -> None:
    checks = prove(DECISION, Evidence(started=STARTED))
    assert [c for c in checks if c.answer is not Proof.CONFIRMED] == []
    assert {c.what for c in checks} >= {"rollback", "resumed_from", "seed", "lr_schedule", "seqlen of the first step"}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"rollback": None}, "rollback"),
        ({"resumed_from": None}, "resumed_from"),
        ({"seed": 3}, "seed"),
        ({"applied_once": ()}, "one-shot changes of incident-1-r1"),
        ({"first_sample_index": 0}, "first_sample_index"),
        ({"lr": 1e-2}, "lr of the first step"),
        ({"lr_schedule": None}, "lr_schedule"),
        ({"lr_schedule": LR.to_json() | {"warmup": 20}}, "lr_schedule"),
        ({"seqlen": 128}, "seqlen of the first step"),
        ({"seqlen_schedule": None}, "seqlen_schedule"),
    ],
)
def test_a_change_that_was_silently_ignored_is_found(changed: dict[str, Any], what: str) -> None:
    checks = prove(DECISION, Evidence(started=replace(STARTED, **changed)))
    wrong = [c.what for c in checks if c.answer is not Proof.CONFIRMED]
    assert what in wrong
    assert wrong == [what] or what == "resumed_from"  # the lr of the first step is that of another step, then


def test_an_attempt_restarted_after_a_crash_is_checked_by_what_still_stands() -> None:
    later = replace(STARTED, resumed_from=40, first_sample_index=640, lr=LR.lr(step=41), seqlen=SEQLEN.seqlen(41))
    assert outcome(prove(DECISION, Evidence(started=later))) is Proof.CONFIRMED
    assert outcome(prove(DECISION, Evidence(started=replace(later, lr=LR.peak)))) is Proof.CONTRADICTED


def test_a_check_compares_numbers_and_never_takes_silence_for_yes() -> None:
    assert Check(what="lr", expected=0.1 + 0.2, reported=0.3).answer is Proof.CONFIRMED
    assert Check(what="lr", expected=0.3, reported=0.3 + 1e-9).answer is Proof.CONTRADICTED
    assert Check(what="lr", expected=0.3, reported=None).answer is Proof.NOT_VERIFIED
    assert Check(what="seed", expected=4, reported=None).answer is Proof.NOT_VERIFIED


UNDO: dict[str, Any] = {"action": {"kind": "undo"}}
MOVE: dict[str, Any] = {
    "rollback": DECISION.id,
    "action": to_json(QuarantineCheckpoints(("global_step20",), "incident-1", DECISION.id)),
}


def test_a_rollback_is_half_done_from_its_decision_until_it_is_applied() -> None:
    book = Book()
    book.open()
    assert book.incident.half_done is None
    book.ledger.record(events.decided("incident-1", DECISION))
    assert book.incident.half_done is not None
    assert not book.incident.rollbacks[0].begun
    book.write(event="intent", **MOVE)
    assert book.incident.rollbacks[0].begun
    book.ledger.record(Applied(incident="incident-1", rollback=DECISION.id))
    assert book.incident.half_done is None


def test_what_was_taken_back_is_half_done_no_more_until_it_is_begun_again() -> None:
    book = Book()
    book.open()
    book.ledger.record(events.decided("incident-1", DECISION))
    book.write(event="intent", **MOVE)
    book.write(event="intent", rollback=DECISION.id, **UNDO)
    assert book.incident.half_done is not None
    book.write(event="done", rollback=DECISION.id, **UNDO)
    assert book.incident.half_done is None
    assert book.incident.undoing == DECISION.id  # until it is closed: then what took its place is under way
    book.ledger.record(Closed(incident="incident-1", outcome="superseded", reason="…"))
    assert book.incident.undoing is None
    with pytest.raises(ConfigError, match="no rollback to undo"):
        undo_incident((book.incident,), None)
    book.write(event="intent", **MOVE)
    assert book.incident.half_done is not None
    assert undo_incident((book.incident,), None).id == "incident-1"


def test_an_undo_that_was_cut_short_is_known_until_it_is_closed() -> None:
    book = Book()
    book.open()
    book.ledger.record(events.decided("incident-1", DECISION))
    book.ledger.record(Applied(incident="incident-1", rollback=DECISION.id))
    book.ledger.record(
        Closed(incident="incident-1", outcome="superseded", reason="rolled back; a person starts the job again")
    )
    book.write(event="intent", rollback=None, **UNDO)
    assert book.incident.undoing == "incident-1"
    book.write(event="done", rollback=None, **UNDO)
    assert undo_incident((book.incident,), None).undoing  # not said to be closed: it is gone through once more
    book.ledger.record(Closed(incident="incident-1", outcome="undone", reason="a person took it back"))
    assert not book.incident.undoing


FAILS = Verdict(kind=VerdictKind.DIVERGED, reason="…")


@pytest.mark.parametrize(
    ("changed", "proof", "event", "told"),
    [
        ({}, Proof.CONFIRMED, "proved", "incident-1-r1 did not help: diverged again"),
        (
            {"seed": None, "lr_schedule": None},
            Proof.NOT_VERIFIED,
            "not_verified",
            "incident-1-r1 failed, and it is not verified that seed, lr_schedule took effect: diverged again",
        ),
    ],
)
def test_only_a_rung_whose_every_change_is_confirmed_is_one_that_did_not_help(
    changed: dict[str, Any], proof: Proof, event: str, told: str
) -> None:
    book = Book()
    book.open()
    book.ledger.record(events.decided("incident-1", DECISION))
    book.ledger.record(Applied(incident="incident-1", rollback=DECISION.id))
    checks = prove(DECISION, Evidence(started=replace(STARTED, **changed)))
    assert outcome(checks) is proof
    book.ledger.record(proof_event(DECISION, 2, checks))
    assert (book.events[-1].kind, book.incident.status) == (event, "holding")
    book.ledger.record(events.rung_failed(book.incident.rollbacks[0], 2, "diverged again", FAILS))
    (rollback,) = book.incident.rollbacks
    assert (rollback.proof, f"{rollback.id} {rollback.result}") == (proof, told)
    assert sentence(book.events[-1]) == told
    assert book.said[-1].endswith(told.partition(" ")[2])


def test_a_change_that_did_not_take_effect_is_an_incident_of_its_own_and_ends_with_the_one_it_belongs_to() -> None:
    book = Book()
    book.open()
    book.ledger.record(events.decided("incident-1", DECISION))
    checks = prove(DECISION, Evidence(started=replace(STARTED, seed=3)))
    assert outcome(checks) is Proof.CONTRADICTED
    book.ledger.record(proof_event(DECISION, 2, checks))
    book.ledger.record(ignored(2, DECISION, 2, Baseline(), checks))
    book.ledger.record(IncidentStopped(incident="incident-1", reason="incident-1-r1 did not take effect"))
    diverged, own = fold(book.events)
    assert (own.id, own.status, own.ignored, own.rollbacks) == ("incident-2", "stopped", "incident-1-r1", [])
    assert own.note == "incident-1-r1 (warmup) did not take effect: seed should be 4 and is 3"
    assert diverged.rollbacks[0].result == "did not take effect: seed"
    assert diverged.rollbacks[0].proved is False
    assert undo_incident((diverged, own), None).id == "incident-1"
    book.ledger.record(Closed(incident="incident-1", outcome="undone", reason="a person took it back"))
    assert [(i.status, i.outcome) for i in fold(book.events)] == [("closed", "undone")] * 2


CHECK = {"what": "seed", "expected": 4, "reported": 4, "unconfirmable": False, "holds": True}
SILENT = {"what": "free", "expected": {"options": ["--lr=1e-5"]}, "reported": None, "unconfirmable": True}


@pytest.mark.parametrize(
    ("checks", "event", "proof", "told"),
    [
        ([CHECK], "proved", Proof.CONFIRMED, "incident-1-r1 did not help: diverged again"),
        (
            [CHECK, SILENT | {"holds": True}],
            "proved",
            Proof.NOT_VERIFIED,
            "incident-1-r1 failed, and it is not verified that free took effect: diverged again",
        ),
        ([CHECK | {"reported": 3, "holds": False}], "not_proved", Proof.CONTRADICTED, None),
    ],
)
def test_a_log_of_an_older_version_is_read_and_a_silence_that_it_called_proved_is_not(
    checks: list[dict[str, Any]], event: str, proof: Proof, told: str | None
) -> None:
    book = Book()
    book.open()
    book.ledger.record(events.decided("incident-1", DECISION))
    book.write(event=event, rollback=DECISION.id, checks=checks)
    assert book.incident.rollbacks[0].proof is proof
    if told is None:
        assert book.incident.rollbacks[0].result == "did not take effect: seed"
        return
    book.write(event="rung_failed", rollback=DECISION.id, reason="diverged again")
    assert f"{DECISION.id} {book.incident.rollbacks[0].result}" == told
    assert [line.sentence for line in story(book.events, "incident-1")][-1] == told


def test_a_decision_of_an_older_version_starts_the_job_again_through_overrides() -> None:
    book = Book()
    book.open()
    book.ledger.record(
        events.decided("incident-1", replace(DECISION, unconfirmed=("seed",), lost_gpu_hours=3.0, in_script=True))
    )
    later = {"unconfirmed", "lost_gpu_hours", "in_script", "restart"}
    older = [{k: v for k, v in event.to_json().items() if k not in later} for event in book.events]
    (rollback,) = fold(map(event_of, older))[0].rollbacks
    assert rollback == replace(
        rollback, id=DECISION.id, unconfirmed=(), lost_gpu_hours=None, in_script=False, restart=True
    )


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (["global_step9"], "moved global_step9 into the quarantine (1)"),
        (["global_step9", "global_step10"], "moved global_step9 … global_step10 into the quarantine (2)"),
    ],
)
def test_the_checkpoints_that_were_moved_are_named(tags: list[str], said: str) -> None:
    action = {"kind": "quarantine_checkpoints", "tags": tags}
    assert [sentence(one) for one in logged({"event": "intent", "action": action})] == [said]
