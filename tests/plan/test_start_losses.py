"""Steps that are made again on the same batches: each one's loss, and the first one's gradient."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sentinel.plan.starts.audit import Continued, Start, Trail
from sentinel.plan.starts.checks import audit
from sentinel.vocabulary.sample import Sample
from tests.support.audited_starts import ANCESTOR, AT, CLEAN, HALVED, LINE, STARTED, decided, sample, start, steps

NORMS = [replace(s, grad_norm=1.0 + 0.1 * (s.global_step % 3)) for s in LINE]
WITH_NORMS = replace(ANCESTOR, recent=tuple(NORMS[AT - 64 : AT]), later=tuple(NORMS[AT : AT + 20]))


def again(loss: Callable[[int], float] = lambda _: 1.0, norm: Callable[[int], float] = lambda _: 1.0) -> Start:
    """Its losses and norms, as shares of those of the same steps before."""

    def changed(s: Sample) -> Sample:
        of = {"loss": s.loss * loss(s.global_step - AT), "grad_norm": (s.grad_norm or 0.0) * norm(s.global_step - AT)}
        return replace(s, attempt=2, **of)

    return replace(CLEAN, samples=tuple(map(changed, NORMS[AT : AT + 20])), ancestor=WITH_NORMS)


def of_micro_batches(count: int, begun: Start) -> Start:
    return replace(begun, started=replace(begun.started, accumulation_steps=count))


def test_a_destroyed_model_whose_first_loss_is_the_same_is_told_by_the_next() -> None:
    """Its sums are the same: two ranks' shards were exchanged, under an older hook that reports no ranks."""
    found = audit(again(loss=lambda n: 1.0 if n == 1 else 1.5))
    assert (found.verdict, found.fault) == (Continued.NO, "updates differ")
    assert "19 of 20 steps that are made again" in found.reason


@pytest.mark.parametrize(
    ("fault", "bad"),
    [
        ("loss jumps", again(loss=lambda _: 1.02)),  # less than the losses of two batches differ by
        ("loss drops", again(loss=lambda _: 0.98)),
        ("updates differ", again(loss=lambda n: 1 + 0.004 * (n - 1))),
        ("updates differ", again(loss=lambda n: float("nan") if n == 7 else 1.0)),
        ("accumulation changed", again(norm=lambda _: 4.0)),
        ("accumulation changed", again(norm=lambda _: 0.5)),
        ("gradient differs", again(norm=lambda _: 1.3)),
        ("accumulation changed", of_micro_batches(4, again(norm=lambda _: 8.0))),  # on two ranks
        ("gradient differs", of_micro_batches(4, again(norm=lambda _: 6.0))),
    ],
)
def test_what_differs_on_the_same_batches_is_named(fault: str, bad: Start) -> None:
    found = audit(bad)
    assert (found.verdict, found.fault) == (Continued.NO, fault), found.reason


@pytest.mark.parametrize(
    "fine",
    [
        again(loss=lambda n: 1 + 0.002 * (-1) ** n, norm=lambda _: 1.005),
        again(loss=lambda n: 1 + 0.0005 * n),  # small differences grow
        replace(again(loss=lambda n: 1.0 if n == 1 else 1.2), rollback=HALVED["rollback"]),
    ],
)
def test_what_the_same_batch_twice_may_show_is_no_fault(fine: Start) -> None:
    if fine.rollback is not None:
        fine = replace(fine, started=replace(fine.started, **HALVED["told"]))
        lrs = steps(lr=lambda s: (HALVED["rollback"].overrides.standing.lr).lr(step=s))
        fine = replace(fine, samples=tuple(replace(s, lr=of.lr) for s, of in zip(fine.samples, lrs, strict=True)))
    found = audit(fine)
    assert found.verdict is Continued.YES, found.reason


@pytest.mark.parametrize("told", [{"world_size": 4}, {"accumulation_steps": 8}])
def test_samples_of_unequal_lengths_that_are_averaged_in_other_groups(told: dict[str, Any]) -> None:
    """A mean of means is another one; the gradient likewise."""
    start = again(loss=lambda n: 1.01 + 0.02 * n, norm=lambda _: 2.0)
    known = replace(WITH_NORMS, started=replace(STARTED, accumulation_steps=4))
    moved = replace(start, started=replace(start.started, **told), ancestor=known)
    assert audit(moved).fault is None
    jumps = replace(again(loss=lambda _: 1.2), started=moved.started, ancestor=known)
    assert audit(jumps).fault == "loss jumps"


def test_micro_batches_that_an_older_hook_has_not_reported_are_no_others() -> None:
    bad = again(loss=lambda n: 1.0 if n == 1 else 1.2)
    assert audit(replace(bad, started=replace(bad.started, accumulation_steps=8))).fault == "updates differ"


def test_after_a_rollback_the_losses_that_diverged_are_no_measure() -> None:
    as_it_was = decided(step=AT)
    restarted = again(loss=lambda n: 1.0 if n == 1 else 0.8)
    started = replace(restarted.started, **as_it_was["told"])
    found = audit(replace(restarted, started=started, rollback=as_it_was["rollback"]))
    assert found.fault is None, found.reason


def test_steps_after_another_batch_are_not_compared() -> None:
    other = again(loss=lambda n: 1.0 if n < 4 else 1.2)
    made = [replace(s, batch_digest=1) if s.global_step == AT + 4 else s for s in other.samples]
    assert audit(replace(other, samples=tuple(made))).fault is None


def digests(seed: int, batch: int = 4) -> Callable[[int], list[int]]:
    """Of each sample of a step's batch."""
    return lambda step: [random.Random(f"{seed} {batch * step + n}").randrange(2**31) for n in range(batch)]


def parted(moved: Callable[[int], int], made: int) -> Start:
    """A start whose digests are moved on within the samples of the run; `made` steps were made before."""
    of = digests(3)
    line = [replace(s, batch_digest=sum(of(s.global_step))) for s in LINE[: AT + made]]
    known = replace(ANCESTOR, recent=tuple(line[AT - 64 : AT]), later=tuple(line[AT:]), trail=Trail(line))

    def digest(step: int) -> int:
        both = of(step) + of(step + 1)
        return moved(step) or sum(both[2:6])

    return start(samples=steps(batch_digest=digest), ancestor=known)


@pytest.mark.parametrize("made", [16, 19])
def test_half_a_batch_skipped_is_no_other_order(made: int) -> None:
    of = digests(77)
    assert audit(parted(lambda _: 0, made)).fault == "part of a batch skipped"
    assert audit(parted(lambda s: sum(of(s)), made)).fault == "data order of another seed"


def test_another_order_is_named_once_it_can_be_told_from_a_part_of_a_batch() -> None:
    of = digests(77)
    other = parted(lambda s: sum(of(s)), made=19)
    few, enough = (audit(replace(other, samples=other.samples[:n])) for n in (15, 16))
    assert (few.fault, few.settled) == (None, False)
    assert enough.fault == "data order of another seed"
    ended = audit(replace(other, samples=other.samples[:5], over=True))
    assert ended.fault == "data order of another seed"


def test_a_batch_whose_micro_batches_are_half_as_many() -> None:
    def of(step: int) -> dict[str, Any]:
        return {"global_batch_samples": 4, "consumed_samples": 8 * AT + 4 * (step - AT), "batch_digest": step}

    fewer = tuple(sample(s, attempt=2, **of(s)) for s in range(AT + 1, AT + 21))
    known = replace(ANCESTOR, started=replace(STARTED, accumulation_steps=4))
    found = audit(start({"accumulation_steps": 2}, samples=fewer, ancestor=known))
    assert found.fault == "accumulation changed"
    assert "4 micro-batches with 8 samples and has 2 with 4" in found.reason
    unknown = audit(start(samples=fewer, ancestor=known))  # an older hook
    assert unknown.fault == "data order of another seed"
