"""The audit of a start: each fault is named, and what was decided, or is not known, is no fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.act.starts import Starts, left_by_others
from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.incident.incident import Proof
from sentinel.plan.observation import Checkpoint
from sentinel.plan.starts.audit import Ancestor, Continued, Start, Trail
from sentinel.plan.starts.checks import audit
from sentinel.plan.starts.curves import learning_rate
from sentinel.vocabulary.overrides import TrainingSettings
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, RunStarted, Sample
from tests.support.audited_starts import (
    ANCESTOR,
    AT,
    BATCH,
    CLEAN,
    HALF,
    HALVED,
    LINE,
    LOADED,
    LR,
    RESET,
    STARTED,
    V,
    at_anchor,
    decided,
    sample,
    start,
    steps,
)
from tests.support.facts import facts_of, look_of
from tests.support.log_lines import logged

STOPPED = replace(ANCESTOR, later=(), trail=Trail(LINE[:AT]))  # its last step was the one that it saved
FORESEEN = replace(STOPPED, trail=Trail(LINE[:AT]))  # and its save foresaw the next eight batches
FORESEEN.trail.foresee(AT, [s.batch_digest or 0 for s in LINE[AT : AT + 8]])


NEWER = Checkpoint(tag="global_step120", global_step=120, complete=True)
TORN = replace(NEWER, complete=False, problem="zero_pp_rank_0.pt is empty")
OTHER_SHARD = replace(LOADED, adam_variance_l1=V * 1.1, layer_variance_l1=(V / 4, V / 4, V * 0.3, V * 0.3))
NO_SCHEDULE = replace(ANCESTOR, started=replace(STARTED, lr_schedule=None))

AGAIN = tuple(replace(s, attempt=2) for s in LINE[:20])  # from step 1

IN_EPOCH = replace(STOPPED, recent=tuple(replace(s, epoch=0) for s in STOPPED.recent))
FRACTIONS = replace(STOPPED, recent=tuple(replace(s, epoch=s.global_step / 200) for s in STOPPED.recent))

FAULTS: list[tuple[str, Start]] = [
    ("scheduler lost", start(samples=steps(lr_at=lambda s: s - AT))),
    ("scheduler lost", start(samples=steps(lr=lambda _: 1e-3))),
    ("scheduler lost", start(samples=steps(lr_at=lambda s: s - AT), ancestor=replace(NO_SCHEDULE, later=()))),
    ("scheduler stepped twice", start(samples=steps(lr_at=lambda s: 2 * s - AT))),
    ("scheduler stepped twice", start(samples=steps(lr_at=lambda s: 2 * s - AT), ancestor=NO_SCHEDULE)),
    ("scheduler stepped twice", start(samples=steps(lr_at=lambda s: s + 1))),
    (
        "scheduler stepped twice",
        start(samples=steps(lr_at=lambda s: 2 * s - AT), ancestor=replace(STOPPED, started=NO_SCHEDULE.started)),
    ),
    ("another learning rate", start(samples=steps(lr=lambda s: 0.7 * LR.lr(step=s)))),
    ("optimizer state not loaded", start(loaded=replace(LOADED, adam_variance_l1=0.0))),
    ("optimizer state not loaded", start(loaded=replace(LOADED, adam_variance_l1=None))),
    ("optimizer state not loaded", start(loaded=None, samples=steps(adam_variance_l1=lambda _: V / 5))),
    ("wrong shard of one rank", start(loaded=OTHER_SHARD)),
    ("wrong checkpoint", start(loaded=replace(LOADED, adam_variance_l1=LINE[79].adam_variance_l1))),
    ("wrong checkpoint", start(loaded=replace(LOADED, adam_variance_l1=V * 2, layer_variance_l1=(V / 2,) * 4))),
    ("wrong checkpoint", start(newest=NEWER, pointed=frozenset({120}))),
    ("newest checkpoint torn", start(newest=TORN, pointed=frozenset({120}))),
    ("started from scratch", start({"resumed_from": None}, samples=AGAIN, newest=NEWER, pointed=frozenset({120}))),
    ("data from epoch start", start(samples=steps(data=lambda s: s - AT))),
    ("data from epoch start", start(samples=steps(data=lambda s: s - AT), ancestor=replace(STOPPED, stops=(40,)))),
    ("data from epoch start", start({"epoch_samples": 0}, samples=steps(data=lambda s: s - AT), ancestor=STOPPED)),
    ("data from epoch start", start({"epoch_samples": 1600}, samples=steps(data=lambda s: s - AT), ancestor=STOPPED)),
    ("data from epoch start", start(samples=steps(data=lambda s: s - AT, epoch=lambda _: 0), ancestor=IN_EPOCH)),
    ("epoch skipped", start(samples=steps(epoch=lambda _: 2), ancestor=IN_EPOCH)),
    ("epoch skipped", start(samples=steps(epoch=lambda s: s / 200 + 1), ancestor=FRACTIONS)),
    ("samples skipped", start(samples=steps(epoch=lambda s: s / 200 + 0.25), ancestor=FRACTIONS)),
    ("data from epoch start", start(samples=steps(consumed_samples=lambda s: (s - AT) * BATCH))),
    ("data order of another seed", start(samples=steps(data=lambda s: s + 10_000))),
    ("samples skipped", start(samples=steps(data=lambda s: s + 7))),
    ("samples skipped", start(samples=steps(consumed_samples=lambda s: s * BATCH + 24))),
    ("samples skipped", start(samples=steps(data=lambda s: s + 5), ancestor=FORESEEN)),
    ("data order of another seed", start(samples=steps(data=lambda s: s + 10_000), ancestor=FORESEEN)),
    ("other samples", start(samples=steps(data=lambda s: s if s % 5 == 0 else s + 10_000))),
    ("samples replayed", start(samples=steps(data=lambda s: s - 30))),
    ("samples replayed", start(samples=steps(consumed_samples=lambda s: s * BATCH - 16))),
    ("loss scale reset", start(samples=steps(loss_scale=lambda _: 65536.0))),
    ("setting changed", start({"adam_beta2": 0.999})),
    ("setting changed", start({"seed": 4})),
    ("setting changed", start({"dropout": 0.1})),
    ("setting changed", start({"decoupled_weight_decay": False})),
    (
        "setting changed",
        start(samples=steps(global_batch_samples=lambda _: 16, consumed_samples=lambda s: 16 * s - 800)),
    ),
    ("loss jumps", start(samples=steps(loss=lambda _: 9.0))),
    ("loss jumps", start(samples=steps(loss=lambda _: 9.0), ancestor=STOPPED)),
    ("loss drops", start(samples=steps(loss=lambda _: 2.0), ancestor=STOPPED)),
    ("override ignored", start(**decided(TrainingSettings(lr=HALF)))),
    ("override ignored", start(**decided(seed=5))),
]


@pytest.mark.parametrize(("fault", "bad"), FAULTS, ids=[f"{n}-{fault}" for n, (fault, _) in enumerate(FAULTS)])
def test_each_fault_is_named_in_a_sentence(fault: str, bad: Start) -> None:
    found = audit(bad)
    assert (found.verdict, found.fault) == (Continued.NO, fault), found.reason
    assert found.reason.startswith(f"{fault}: ")
    assert found.settled


RESEEDED = decided(seed=5)
RESEEDED["told"] |= at_anchor(seed=5)
LATER = decided(seed=5, step=AT - 40)  # reseeded earlier, by the ancestor: nothing is new at this start
LATER["told"] |= {"seed": 5}
LATE = [replace(s, lr=LR.lr(step=s.global_step - 1)) for s in LINE]  # Megatron: the first step has step 0's rate
BEHIND = replace(ANCESTOR, recent=tuple(LATE[AT - 64 : AT]), later=tuple(LATE[AT : AT + 20]), trail=Trail(LATE))
CLEAN_STARTS = {
    "as it was": CLEAN,
    "no step made before is made again": start(ancestor=STOPPED),
    "what its save foresaw comes": start(ancestor=FORESEEN),
    "decided: half the LR": start(samples=steps(lr=lambda s: HALF.lr(step=s)), **HALVED),
    "decided: another seed": start(samples=steps(data=lambda s: s + 10_000), **RESEEDED),
    "decided: moments reset": start(loaded=replace(LOADED, adam_variance_l1=0.0), **RESET),
    "decided earlier": start(
        ancestor=replace(ANCESTOR, started=replace(STARTED, seed=5, rollback="incident-1-r1")), **LATER
    ),
    "sums in another order": start(loaded=replace(LOADED, adam_variance_l1=V * (1 + 1e-7))),
    "the loss scale moves by 2": start(samples=steps(loss_scale=lambda _: 2048.0)),
    "told to go back": start(newest=NEWER),
    "a sample is lost": start(samples=CLEAN.samples[1:]),
    "one batch is another": start(samples=steps(data=lambda s: s + 10_000 * (s == AT + 3))),
    "an epoch ends, the next is in an order of its own": start(samples=steps(data=lambda s: s + 10_000 * (s > AT + 8))),
    "the next epoch, in the same order, by its length": start(
        {"epoch_samples": AT * BATCH + 3}, samples=steps(data=lambda s: s - AT), ancestor=STOPPED
    ),
    "the next epoch, in the same order, as the trainer counts": start(
        samples=steps(data=lambda s: s - AT, epoch=lambda _: 1), ancestor=IN_EPOCH
    ),
    "epochs counted in fractions": start(samples=steps(epoch=lambda s: s / 200), ancestor=FRACTIONS),
    "epochs counted anew by each process": start(
        samples=steps(epoch=lambda _: 0),
        ancestor=replace(IN_EPOCH, recent=tuple(replace(s, epoch=3) for s in IN_EPOCH.recent)),
    ),
    "other kernels": start(samples=steps(loss=lambda s: sample(s).loss * 1.002)),
    "more ranks, whose batches are counted otherwise": start(
        {"world_size": 4}, samples=steps(data=lambda s: s + 10_000)
    ),
}


@pytest.mark.parametrize("case", CLEAN_STARTS)
def test_what_goes_on_or_was_decided_is_no_fault(case: str) -> None:
    found = audit(CLEAN_STARTS[case])
    assert (found.verdict, found.fault) == (Continued.YES, None), found.reason


def test_a_decided_lr_is_as_late_as_the_runs_own_was() -> None:
    halved = start(samples=steps(lr=lambda s: HALF.lr(step=s - 1)), ancestor=BEHIND, **HALVED)
    assert [check.answer for check in learning_rate(halved, BEHIND)] == [Proof.CONFIRMED]
    early = start(samples=steps(lr=lambda s: HALF.lr(step=s)), ancestor=BEHIND, **HALVED)
    assert [check.answer for check in learning_rate(early, BEHIND)] == [Proof.CONTRADICTED]


def test_epochs_in_one_order_are_no_replay() -> None:
    line = [sample(step, data=step % 50) for step in range(1, AT + 1)]
    periodic = replace(STOPPED, recent=tuple(line[-64:]), trail=Trail(line))
    found = audit(start(samples=steps(data=lambda s: s % 50), ancestor=periodic))
    assert found.verdict is Continued.YES, found.reason


def test_a_trainer_that_does_not_say_where_it_resumed_is_not_said_to_begin_anew() -> None:
    mute = start({"resumed_from": None}, newest=NEWER, pointed=frozenset({120}))
    assert audit(mute).verdict is Continued.UNKNOWN


def test_the_first_batches_again_are_unknown_where_nothing_tells_whether_an_epoch_ended() -> None:
    found = audit(start(samples=steps(data=lambda s: s - AT), ancestor=STOPPED))
    assert (found.verdict, found.fault) == (Continued.UNKNOWN, None)
    assert "whether an epoch ended before it is not known" in found.reason


def test_too_little_is_unknown_and_waits_for_twenty_steps() -> None:
    bare = [Sample(attempt=1, global_step=s, time_unix_s=0.0, loss=3.0) for s in range(1, AT + 21)]
    ancestor = Ancestor(started=RunStarted(attempt=1, time_unix_s=0.0), recent=tuple(bare[:AT]), trail=Trail(bare))
    few = start({"lr_schedule": None}, samples=tuple(bare[AT : AT + 4]), loaded=None, ancestor=ancestor)
    found = audit(few)
    assert (found.verdict, found.settled) == (Continued.UNKNOWN, False)
    assert "consumed samples are not reported" in found.reason
    assert audit(replace(few, samples=tuple(bare[AT:]))).settled
    assert not audit(replace(CLEAN, samples=CLEAN.samples[:5])).settled


@pytest.mark.parametrize(
    ("seen", "finished", "newest"),
    [
        (33, False, None),  # its own save of step 40 may be under way, and not be reported yet
        (33, True, 40),
        (25, False, 40),
        (45, False, None),
    ],
)
def test_a_checkpoint_that_the_attempt_may_be_saving_over_an_earlier_one_is_not_called_left(
    seen: int, finished: bool, newest: int | None
) -> None:
    history, ends = History(), RunFinished(attempt=2, global_step=seen, time_unix_s=1.0, reason="finished")
    history.push(CheckpointSaved(attempt=1, global_step=40, time_unix_s=0.0, tag="global_step40"))
    history.push(RunStarted(attempt=2, time_unix_s=0.0, resumed_from=20))
    history.push(sample(seen, attempt=2))
    if finished:
        history.push(ends)
    half = Checkpoint(tag="global_step40", global_step=40, complete=False, problem="it has no model file")
    state = facts_of(now_unix_s=2.0, checkpoints=(half,), last_step=seen, step_time_s=0.1)
    found = left_by_others(history.attempts[2], history, state, took_s=0.3)
    assert (found and found.global_step) == newest


BY_SENTINEL = {"event": "intent", "incident": None, "action": {"kind": "point_latest"}, "newest_attempt": 1}
BEFORE_IT = {**BY_SENTINEL, "newest_attempt": 0}


@pytest.mark.parametrize(
    ("resumed_from", "own", "latest", "events", "fault"),
    [
        (None, True, "global_step10", (), "started from scratch"),
        (None, True, "global_step10", (BEFORE_IT,), "started from scratch"),
        (None, True, "global_step10", (BY_SENTINEL,), None),  # a rung may have wanted it
        (None, True, "global_step10", ({**BY_SENTINEL, "newest_attempt": None},), None),
        (20, True, "global_step10", (), None),  # which of them was in `latest` is not known
        (None, False, "global_step40", (), "started from scratch"),
        (None, False, None, (), "started from scratch"),
    ],
)
def test_a_start_from_scratch_is_told_also_once_latest_names_what_it_has_saved(
    resumed_from: int | None, own: bool, latest: str | None, events: tuple[dict[str, Any], ...], fault: str | None
) -> None:
    history = History()
    for step in (20, 40):
        history.push(CheckpointSaved(attempt=1, global_step=step, time_unix_s=0.0, tag=f"global_step{step}"))
    history.push(RunStarted(attempt=2, time_unix_s=1.0, resumed_from=resumed_from))
    first = (resumed_from or 0) + 1
    for step in range(first, first + 12):
        history.push(sample(step, attempt=2))
    if own:
        history.push(CheckpointSaved(attempt=2, global_step=10, time_unix_s=2.0, tag="global_step10"))
    saves = tuple(Checkpoint(tag=f"global_step{step}", global_step=step, complete=True) for step in (10, 40))
    run = facts_of(now_unix_s=9.0, checkpoints=saves, latest_tag=latest, last_step=first + 11, step_time_s=0.1)
    verdict = Verdict(kind=VerdictKind.HEALTHY, reason="")
    look = look_of(history, Series(Thresholds()), run.changed(verdict=verdict, events=logged(*events)))
    found = Starts().audit(look)
    assert (found and found.fault) == fault
