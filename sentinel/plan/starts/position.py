"""Whether an attempt goes on at the sample that its checkpoint was saved at, and whether an epoch ended there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from sentinel.judge.history import Attempt, History
from sentinel.plan.starts.audit import EPOCH, NEXT_EPOCH, REPLAYED, SKIPPED, Ancestor, Start
from sentinel.plan.starts.evidence import FIRST_STEPS
from sentinel.plan.starts.proof import Check, confirmed, contradicted, silent
from sentinel.vocabulary.sample import Sample

EPOCH_END = "epoch end"
# Keys of overrides.json with which a step's samples, or their count, are others
OTHER_DATA = frozenset({"skip_samples", "curriculum", "batch_size", "seqlen", "shorten", "skipped"})

_MOST_STOPS = 64
_PRINTED = 0.011  # epochs are printed with two decimals
_FRACTIONS_FEW = 0.05  # of an epoch: a smaller jump is not told from a ramp of the batch


def stops_before(history: History, parent: Attempt, at: int) -> tuple[int, ...]:
    """Steps below `at` at which the run up to it was saved or resumed; the last ones."""
    steps = set[int]()
    for one, until in history.descent(parent):
        last = at if until is None else min(at, until + 1)
        steps.update(saved.global_step for saved in one.saved if saved.global_step < last)
        if until is not None and until < at:
            steps.add(until)
    return tuple(sorted(steps)[-_MOST_STOPS:])


def position(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """The first step, and the samples consumed before it."""
    if not start.samples:
        return
    first, saved, at = start.samples[0], ancestor.at(start.resumed_from), start.resumed_from
    if first.global_step <= at:
        why = f"its first step is {first.global_step}, and the checkpoint is of step {at}"
        yield contradicted(REPLAYED, at + 1, first.global_step, why)
    before = saved.consumed_samples if saved is not None else None
    if before is None or first.consumed_samples is None or first.global_batch_samples is None:
        yield silent("position", "consumed samples are not reported")
        return
    made = max(1, first.global_step - at)  # the first of them are not reported where a log has every tenth step
    begun, skips = first.consumed_samples - made * first.global_batch_samples, bool(start.started.skipped_samples)
    if made > 1 and saved is not None and saved.global_batch_samples not in (None, first.global_batch_samples):
        yield silent("position", "the batch has changed in steps that are not reported")
    elif not _grows_by_batches(ancestor):
        yield silent("position", "consumed samples do not grow by the samples of a step")
    elif made > 1 and 0 < abs(begun - before) < first.global_batch_samples:
        yield silent("position", "how large the batches were that are not reported is not known")
    elif begun < before:
        why = f"{before} samples were consumed at step {at}, and it goes on from sample {begun}"
        yield contradicted(EPOCH if begun == 0 else REPLAYED, before, begun, why)
    elif begun > before and not skips and "skip_samples" not in start.decided:
        yield _passed_over(start, ancestor, before, begun)
    else:
        yield confirmed("position")


def _grows_by_batches(ancestor: Ancestor) -> bool:
    """Whether consumed samples have grown by a step's samples at any of the last steps; True where none are at hand."""
    last = [s for s in ancestor.recent[-FIRST_STEPS:] if s.consumed_samples is not None]
    known = [(s.global_step, s.consumed_samples or 0, s.global_batch_samples) for s in last]
    pairs = [(now - was, batch) for (at, was, _), (step, now, batch) in pairwise(known) if step == at + 1]
    return not pairs or any(grown == batch for grown, batch in pairs)


def _passed_over(start: Start, ancestor: Ancestor, before: int, begun: int) -> Check:
    """Less than a batch at an epoch's end is what drop_last leaves out, where it is counted."""
    first, length = start.samples[0], epoch_samples(start, ancestor)
    if begun - before < (first.global_batch_samples or 0) and length != 0:
        if length is None:
            return silent("position", "less than a batch was passed over, and the length of an epoch is not reported")
        if before // length < (first.consumed_samples or 0) // length:
            return confirmed("position")
    why = f"{begun - before} samples after step {start.resumed_from} were not trained on"
    return contradicted(SKIPPED, before, begun, why)


def epoch_samples(start: Start, ancestor: Ancestor) -> int | None:
    """As the attempt reports it, else the one before; 0 for a stream, None where neither does."""
    if start.started.epoch_samples is None and ancestor.started is not None:
        return ancestor.started.epoch_samples
    return start.started.epoch_samples


def epoch_ended(start: Start, ancestor: Ancestor) -> bool | None:
    """Whether an epoch ended at the checkpoint; None where nothing tells. What the trainer says of its epochs comes
    before what its batches show."""
    told = _by_length(start, ancestor)
    told = _by_count(start, ancestor) if told is None else told
    return _by_batches(start.resumed_from, ancestor) if told is None else told


def epochs(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """The epoch of the first step, as the trainer counts it, with that at the checkpoint. A count that goes back is
    none that was saved: it tells nothing."""
    saved, first = ancestor.at(start.resumed_from), start.samples[0] if start.samples else None
    if first is None or saved is None or saved.epoch is None or first.epoch is None or start.decided & OTHER_DATA:
        return
    made, moved = first.global_step - saved.global_step, first.epoch - saved.epoch
    if _in_fractions(start, ancestor):
        each = max(_step_of(ancestor.recent), _step_of(start.samples))
        if not each or each > 0.5:
            return
        skipped, whole = moved - each * made, 1 - each
        wrong = skipped > max(4 * each * made, _FRACTIONS_FEW)
    else:
        skipped, whole = moved - 1, 1.0
        wrong = moved >= 2 and made < 2
    if moved >= 0 and not wrong:
        yield confirmed("epoch")
    elif moved >= 0:
        fault = NEXT_EPOCH if skipped >= whole - _PRINTED else SKIPPED
        why = f"the trainer counts epoch {saved.epoch:g} at step {saved.global_step}, and {first.epoch:g} at step"
        why = f"{why} {first.global_step}: {skipped:.2g} epochs are left out"
        yield contradicted(fault, saved.epoch, first.epoch, why)


def of_another_epoch(start: Start, ancestor: Ancestor, step: int) -> bool:
    """Whether the first batch is of a later epoch than that earlier step's, by the trainer's count or by the samples
    that lie between; False where neither tells."""
    first, there, length = start.samples[0], ancestor.trail.epoch(step), epoch_samples(start, ancestor)
    if there is not None and first.epoch is not None:
        fractions = _in_fractions(start, ancestor)
        before, now = (math.ceil(e - 1e-4) if fractions else e for e in (there, first.epoch))
        return before < now
    batch = first.global_batch_samples
    return bool(length and batch) and (first.global_step - step + 1) * (batch or 0) >= (length or 0)


def _in_fractions(start: Start, ancestor: Ancestor) -> bool:
    """Whether the trainer counts epochs in fractions; else in whole numbers, that of the epoch under way."""
    near = (*ancestor.recent[-FIRST_STEPS:], *start.samples[:FIRST_STEPS])
    return any(s.epoch is not None and s.epoch != int(s.epoch) for s in near)


def _step_of(samples: Sequence[Sample]) -> float:
    """Epochs that a step takes, the most of the last 20 pairs; 0 where they are not reported."""
    known = [(s.global_step, s.epoch) for s in samples if s.epoch is not None][-20:]
    pairs = ((now - was) / (step - at) for (at, was), (step, now) in pairwise(known) if step > at)
    return max((moved for moved in pairs if moved < 0.5), default=0.0)


def _by_length(start: Start, ancestor: Ancestor) -> bool | None:
    """By the samples of an epoch: at its end, or so near that no whole batch is left. Not where the batch has changed
    before: what drop_last has left out is then not known."""
    length = epoch_samples(start, ancestor)
    if length == 0:
        return False
    saved, at = ancestor.at(start.resumed_from), start.resumed_from
    batch = saved.global_batch_samples if saved is not None else None
    if length is None or saved is None or not batch or saved.consumed_samples is None:
        return None
    left = -saved.consumed_samples % length
    steps = {max(1, length // batch), -(-length // batch)}
    if left == 0 or left < batch or any(at % each == 0 for each in steps):
        return True
    steady = {s.global_batch_samples for s in ancestor.recent} == {batch} and saved.consumed_samples <= at * batch
    return False if steady else None


def _by_count(start: Start, ancestor: Ancestor) -> bool | None:
    """By the trainer's count of epochs."""
    saved, first = ancestor.at(start.resumed_from), start.samples[0]
    if saved is None or saved.epoch is None:
        return None
    if _in_fractions(start, ancestor):
        return abs(saved.epoch - round(saved.epoch)) <= max(_step_of(ancestor.recent), _PRINTED)
    if first.epoch is None or first.epoch < saved.epoch:
        return None
    return first.epoch > saved.epoch


def _by_batches(at: int, ancestor: Ancestor) -> bool | None:
    """By where the first batch came again before; else by the other saves: where one of them was within an epoch, that
    this one is just at an end would be chance."""
    trail, first = ancestor.trail, ancestor.trail.steps[0]
    if (begun := trail.digest(first)) is None:
        return None
    known = [(step, trail.digest(step)) for step in range(at + 1, at + 3)]
    if any(digest not in (None, trail.digest(first + step - at - 1)) for step, digest in known):
        return False  # the attempt before was trained on other batches there, or its save has foreseen others
    came = [step for step in trail.steps_fed(begun) if step <= at]
    if len(came) > 1:
        length = came[1] - came[0]
        return (at + 1 - came[0]) % length == 0
    within = [step for step in ancestor.stops if first <= step < at and trail.digest(step + 1) not in (None, begun)]
    return False if within else None
