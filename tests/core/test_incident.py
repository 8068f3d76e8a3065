"""The incident log's grammar: the fold tells where each incident stands, from what is written and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sentinel.act.ledger import Ledger
from sentinel.act.undo import undo_incident
from sentinel.judge.history import Attempt
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.actions import QuarantineCheckpoints, StartJob, to_json
from sentinel.plan.baseline import Baseline
from sentinel.plan.evidence import Evidence
from sentinel.plan.incident import Incident, Rollback, fold
from sentinel.plan.proof import Check, outcome, prove
from sentinel.plan.proof_value import Proof
from sentinel.vocabulary.errors import ConfigError, IncidentLogError
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, Standing
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from sentinel.vocabulary.sample import RunStarted, Sample

LR = LrSchedule(peak=1e-2, warmup=160, anchor=10, decay_start=20, decay_end=240)
SEQLEN = FixedLinear(start=8, full=128, total_steps=60, anchor_step=10)
OVERRIDES = Overrides(
    incident="incident-1",
    rollback="incident-1-r1",
    anchor=Anchor(global_step=10, consumed_samples=160, consumed_tokens=20480),
    standing=Standing(lr=LR, seqlen=SEQLEN),
    once=Once(id="incident-1-r1", seed=4),
)
DECISION = Rollback(
    id="incident-1-r1",
    rung="warmup",
    hypothesis="…",
    target_tag="global_step10",
    target_step=10,
    overrides=OVERRIDES,
    changes=("seed 3 -> 4",),
    decided_unix_s=7.0,
    lost_steps=70,
)
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
        self.events: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.ledger = Ledger(self._append, clock=lambda: 7.0, say=self.said.append)

    def _append(self, event: Mapping[str, Any]) -> None:
        self.events.append(load_object(dump_json(dict(event))))

    @property
    def incident(self) -> Incident:
        (only,) = fold(self.events)
        return only

    def open(self) -> None:
        samples = [
            Sample(attempt=1, global_step=s, time_unix_s=0.0, loss=3.0, consumed_tokens=s * 10) for s in range(1, 60)
        ]
        verdict = Verdict(
            kind=VerdictKind.DIVERGED, reason="it stays up", onset_range=(47, 49), alarm_step=88, led_by=("grad_norm",)
        )
        self.ledger.opened(
            1, Attempt(1), Baseline(seed=3, lr=LR), None, reason="it stays up", verdict=verdict, lineage=samples
        )


def test_the_story_of_an_incident_is_told_by_its_events_alone() -> None:
    book = Book()
    book.open()
    opened = book.incident
    assert (opened.status, opened.onset_range, opened.onset_tokens, opened.best_mean) == ("open", (47, 49), 490, 3.0)
    assert (opened.led_by, opened.baseline, opened.current) == (("grad_norm",), Baseline(seed=3, lr=LR), None)
    book.ledger.decided("incident-1", DECISION)
    assert book.incident.status == "decided"
    assert book.incident.current == DECISION
    for action in (
        QuarantineCheckpoints(("global_step20",), "incident-1", DECISION.id),
        StartJob("incident-1", DECISION.id),
    ):
        book.ledger.record(
            {"event": "intent", "incident": "incident-1", "rollback": DECISION.id, "action": to_json(action)}
        )
    current = book.incident.current
    assert current is not None
    assert (current.moved_tags, current.starts, current.last_start_unix_s) == (("global_step20",), 1, 7.0)
    book.ledger.applied(DECISION)
    assert book.incident.status == "applied"
    checks = prove(DECISION, Evidence(started=STARTED))
    assert book.ledger.proof(DECISION, 2, checks) is Proof.CONFIRMED
    assert book.incident.status == "holding"
    book.ledger.rung_failed(DECISION, 2, "diverged again", Verdict(kind=VerdictKind.DIVERGED, reason="…"))
    assert (book.incident.status, book.incident.current) == ("open", None)
    book.ledger.stopped(book.incident, "the budget is spent")
    assert (book.incident.status, book.incident.note) == ("stopped", "the budget is spent")
    book.ledger.closed("incident-1", "undone", "a person took it back")
    assert (book.incident.status, book.incident.outcome) == ("closed", "undone")


def test_a_restart_after_a_crash_belongs_to_no_incident() -> None:
    event = {"event": "intent", "incident": None, "rollback": None, "time_unix_s": 1.0, "action": {"kind": "start_job"}}
    assert fold([event]) == ()


@pytest.mark.parametrize(
    "event",
    [
        {"event": "decided", "incident": "incident-9", "time_unix_s": 1.0},
        {"event": "opened", "incident": "incident-1", "time_unix_s": 1.0},
        {"incident": "incident-1"},
        {"event": "opened", "incident": "incident-1", "time_unix_s": "yesterday"},
    ],
)
def test_an_event_that_makes_no_sense_is_not_guessed_at(event: dict[str, Any]) -> None:
    with pytest.raises(IncidentLogError, match="event 1"):
        fold([event])


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


UNDO = {"incident": "incident-1", "action": {"kind": "undo"}}
MOVE = {
    "incident": "incident-1",
    "rollback": DECISION.id,
    "action": to_json(QuarantineCheckpoints(("global_step20",), "incident-1", DECISION.id)),
}


def test_a_rollback_is_half_done_from_its_decision_until_it_is_applied() -> None:
    book = Book()
    book.open()
    assert book.incident.half_done is None
    book.ledger.decided("incident-1", DECISION)
    assert book.incident.half_done is not None
    assert not book.incident.rollbacks[0].begun
    book.ledger.record({"event": "intent", **MOVE})
    assert book.incident.rollbacks[0].begun
    book.ledger.applied(DECISION)
    assert book.incident.half_done is None


def test_what_was_taken_back_is_half_done_no_more_until_it_is_begun_again() -> None:
    book = Book()
    book.open()
    book.ledger.decided("incident-1", DECISION)
    book.ledger.record({"event": "intent", **MOVE})
    book.ledger.record({"event": "intent", "rollback": DECISION.id, **UNDO})
    assert book.incident.half_done is not None
    book.ledger.record({"event": "done", "rollback": DECISION.id, **UNDO})
    assert book.incident.half_done is None
    assert book.incident.undoing == DECISION.id  # until it is closed: then what took its place is under way
    book.ledger.closed("incident-1", "superseded", "…")
    assert book.incident.undoing is None
    with pytest.raises(ConfigError, match="no rollback to undo"):
        undo_incident((book.incident,), None)
    book.ledger.record({"event": "intent", **MOVE})
    assert book.incident.half_done is not None
    assert undo_incident((book.incident,), None).id == "incident-1"


def test_an_undo_that_was_cut_short_is_known_until_it_is_closed() -> None:
    book = Book()
    book.open()
    book.ledger.decided("incident-1", DECISION)
    book.ledger.applied(DECISION)
    book.ledger.closed("incident-1", "superseded", "rolled back; a person starts the job again")
    book.ledger.record({"event": "intent", "rollback": None, **UNDO})
    assert book.incident.undoing == "incident-1"
    book.ledger.record({"event": "done", "rollback": None, **UNDO})
    assert undo_incident((book.incident,), None).undoing  # not said to be closed: it is gone through once more
    book.ledger.closed("incident-1", "undone", "a person took it back")
    assert not book.incident.undoing
