"""Whether an attempt's learning rates and batches are those that come next, and where else in the run they stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from sentinel.plan.incident.incident import Proof
from sentinel.plan.starts.audit import EPOCH, FIRST, PART, REPLAYED, SKIPPED, Ancestor, Start
from sentinel.plan.starts.evidence import FIRST_STEPS, PRINTED
from sentinel.plan.starts.position import EPOCH_END, OTHER_DATA, epoch_ended, of_another_epoch
from sentinel.plan.starts.proof import Check, confirmed, contradicted, silent
from sentinel.vocabulary.codec import read
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.reported_settings import AS_REPORTED

ORDER, OTHER = "data order of another seed", "other samples"
LOST, TWICE, OTHER_LR = "scheduler lost", "scheduler stepped twice", "another learning rate"

_FEW_LRS = 5  # steps that a learning rate is followed for before its fault is named
_SUDDEN = 0.1  # share by which the first LR may differ from the last one before, where nothing tells what is due
_MOST_SHIFT = 64
_LAST = 5  # steps before a start that tell whether epochs repeat one another
_FEW_OTHERS = 2  # batches that the run never saw, between those that it saw there
_PART_STEPS = 16  # whose digests tell a part of a batch that was left out from another order
# See _part_of_a_batch: 1 to 2 % of other orders look like one, of parts 50 % (12 steps) to 90 % (19)
_PART_SHARE = 0.035
Curve = Callable[[int], float | None]


def data(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """The batches' digests against those of the same steps, and of all steps before."""
    now = {s.global_step: s.batch_digest for s in start.samples if s.batch_digest is not None}
    if start.decided & {*OTHER_DATA, "seed"}:
        yield silent("data order", "a rung changes it")
        return
    if len(now) < FIRST_STEPS or not any(digest >= 0 for digest in ancestor.trail.digests):
        yield silent("data order", "batches are not reported")
        return
    trail, at = ancestor.trail, start.resumed_from
    again = {step: trail.digest(step) for step in now}
    same = [now[step] == digest for step, digest in again.items() if digest is not None]
    if same and all(same):
        yield confirmed("data order")
    elif (shift := _shift(now, ancestor)) is not None:
        yield _shifted(shift, ancestor, start)
    elif _as_many_ranks(start, ancestor) and (new := _new_among_known(now, again, ancestor)):
        why = f"{len(new)} of its first {len(now)} batches were never seen, between such as the same steps had before"
        yield contradicted(OTHER, again[new[0]], now[new[0]], f"{why}: the order is the same, the samples are not")
    elif same and not any(same) and _as_many_ranks(start, ancestor):
        if len(same) == len(now) < _PART_STEPS and not start.over:
            yield silent("data order", f"its fault is named after {_PART_STEPS} steps")
            return
        fault, why = ORDER, f"none of its first {len(same)} batches is the one that the same step was trained on before"
        if _part_of_a_batch([now[step] - digest for step, digest in sorted(again.items()) if digest is not None]):
            moved = "are those of the same steps before, moved by a part of a batch"
            fault, why = PART, f"its first {len(same)} batches {moved}"
        yield contradicted(fault, again.get(at + 1), now.get(at + 1), why)
    else:
        yield silent("data order", "the batches after the checkpoint are not known from before")


def _new_among_known(now: Mapping[int, int], again: Mapping[int, int | None], ancestor: Ancestor) -> list[int]:
    """The steps whose batch is in place of the one that was there before, and is no other step's, where a later step
    has its own again. After the last such one another epoch may have begun, in an order of its own."""
    last = max((step for step, digest in again.items() if digest is not None and now[step] == digest), default=0)
    changed = [s for s, digest in again.items() if s < last and digest is not None and now[s] != digest]
    return changed if len(changed) >= _FEW_OTHERS and not any(ancestor.trail.steps_fed(now[s]) for s in changed) else []


def _shift(now: Mapping[int, int], ancestor: Ancestor) -> int | None:
    """By how many steps its first batches stand elsewhere in the run, where all that can be compared do; None else."""
    trail, first = ancestor.trail, min(now)
    found = [step - first for step in trail.steps_fed(now[first])[-8:]]
    if any(_periodic(shift, ancestor) for shift in found):
        return None
    for shift in found:
        known = [(now[s], there) for s in now if (there := trail.digest(s + shift)) is not None]
        last = first + shift == trail.steps[-1]  # after it nothing can be compared
        if shift and (len(known) >= 2 or last) and all(a == b for a, b in known):
            return shift
    return None


def _part_of_a_batch(differences: list[int]) -> bool:
    """Whether digests, less those of the same steps before, are those of batches moved by a part of one.

    A digest is a sum over samples. Moved on, a step loses its batch's first part and gets the next batch's: what the
    differences add up to is that part's digest now, less its first one, and stays near 0. In another order they add up
    to a random walk, whose variance grows with the steps, from n / 6 of the mean square of one difference.
    """
    n = len(differences)
    if n < _PART_STEPS // 2:
        return False
    sums = [float(total) for total in accumulate(differences)]
    mean = sum(sums) / n
    variance = sum((total - mean) ** 2 for total in sums) / n
    return variance < _PART_SHARE * n * sum(float(one) ** 2 for one in differences) / n


def _periodic(shift: int, ancestor: Ancestor) -> bool:
    """Whether the run's own last steps repeat the data at that distance: epochs in one and the same order."""
    last = [(s.batch_digest, ancestor.trail.digest(s.global_step + shift)) for s in ancestor.recent[-_LAST:]]
    known = [now == then for now, then in last if now is not None and then is not None]  # the hook may lose samples
    return bool(known) and all(known)


def _shifted(shift: int, ancestor: Ancestor, start: Start) -> Check:
    first = min(sample.global_step for sample in start.samples if sample.batch_digest is not None)
    there = first + shift
    if shift > 0:
        why = f"step {first} is trained on the batch that step {there} was trained on: {shift} steps' data are skipped"
        return contradicted(SKIPPED, first, there, why)
    again = f"step {first} is trained on the batch of step {there} again"
    ended = epoch_ended(start, ancestor)
    if there != ancestor.trail.steps[0]:
        if ended or of_another_epoch(start, ancestor, there):
            return silent("data order", f"{again}, in another epoch")
        return contradicted(REPLAYED, first, there, again)
    if ended is None:
        return silent(EPOCH_END, f"{again}; whether an epoch ended before it is not known")
    return confirmed("data order") if ended else contradicted(EPOCH, first, there, again)


def _as_many_ranks(start: Start, ancestor: Ancestor) -> bool:
    """With another number of ranks, tensor parallelism may count a batch more often."""
    before = ancestor.started.world_size if ancestor.started else None
    return before == start.started.world_size


def learning_rate(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """Against the schedule that was decided, else the reported one, else the rates of the same steps before."""
    now = {s.global_step: s.lr for s in start.samples if s.lr is not None and math.isfinite(s.lr)}
    if not now or (start.decided & {"lr", "free"} and _schedule(start, ancestor) is None):
        yield silent("learning rate", "it is not reported, or a rung changes it in a way that can't be predicted")
        return
    curve = _schedule(start, ancestor) or ancestor.trail.lr
    known = {step: lr for step in now if (lr := curve(step)) is not None}
    if not known:
        yield _by_the_last_ones(ancestor, now)
    elif all(_same(now[step], lr) for step, lr in known.items()):
        yield confirmed("learning rate")
    elif len(now) < _FEW_LRS and not start.over:
        yield silent("learning rate", f"its fault is named after {_FEW_LRS} steps")
    else:
        yield _misplaced(curve, now, known, start.resumed_from, ancestor)


def _schedule(start: Start, ancestor: Ancestor) -> Curve | None:
    """The LR by step, where a schedule in steps is decided, or one that is reported gives the run's last rates."""
    decided = start.rollback.overrides.standing.lr if start.rollback else None
    reported = start.started.lr_schedule if ancestor.started is None else ancestor.started.lr_schedule
    own = read(LrSchedule, reported, "lr_schedule", AS_REPORTED) if reported else None
    lr = decided or own
    if lr is None or not lr.by_steps:
        return None
    late = 1 if own is not None and own.by_steps and _goes_by(own, ancestor, late=1) else 0
    if decided is None and not _goes_by(lr, ancestor, late=0):
        return None
    return lambda step: lr.lr(step=step - late) if step > late else None


def _goes_by(lr: LrSchedule, ancestor: Ancestor, *, late: int) -> bool:
    """Whether the run's last rates are the schedule's of so many steps before: Megatron's first step has the rate of
    step 0."""
    last = [s for s in ancestor.recent[-FIRST_STEPS:] if s.lr is not None]
    told = all(_same(s.lr or 0.0, lr.lr(step=s.global_step - late)) for s in last if s.global_step > late)
    return told and (not late or (bool(last) and not _goes_by(lr, ancestor, late=0)))


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=2 * PRINTED, abs_tol=1e-15)


def _misplaced(
    curve: Curve, now: Mapping[int, float], known: Mapping[int, float], at: int, ancestor: Ancestor
) -> Check:
    """Where on the schedule the rates stand."""
    step = next(s for s in known if not _same(now[s], known[s]))
    told = f"the learning rate of step {step} is {now[step]:.4g}, and {known[step]:.4g} is due"

    def stands(place: Callable[[int], int]) -> bool:  # the first step may yet have the rate that a checkpoint holds
        there = [(now[s], lr) for s in sorted(now)[1:] if (lr := curve(place(s))) is not None]
        return len(there) >= min(FIRST_STEPS, len(now) - 1) and all(_same(a, b) for a, b in there)

    if stands(lambda s: s - at):
        return contradicted(LOST, known[step], now[step], f"{told}: the schedule begins again from step 1")
    steady = len({round(lr / max(now.values()), 6) for lr in now.values()}) == 1
    if steady and now[step] > known[step] and now[step] >= max([*ancestor.trail.lrs, 0.0]) * (1 - PRINTED):
        return contradicted(LOST, known[step], now[step], f"{told}: it stays there, without a schedule")
    if stands(lambda s: at + 2 * (s - at)) or stands(lambda s: 2 * s) or stands(lambda s: at + 2 * (s - at) - 1):
        return contradicted(TWICE, known[step], now[step], f"{told}: the schedule makes two steps for each")
    for shift in sorted(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=abs):
        if shift and stands(lambda s, shift=shift: s + shift):  # type: ignore[misc]
            fault = TWICE if shift > 0 else LOST
            return contradicted(fault, known[step], now[step], f"{told}: the schedule is {shift:+d} steps off")
    return contradicted(OTHER_LR, known[step], now[step], told)


def _by_the_last_ones(ancestor: Ancestor, now: Mapping[int, float]) -> Check:
    """Nothing tells what the rates should be: they go on from the last ones, with the slope that these had."""
    last = [(s.global_step, s.lr) for s in ancestor.recent[-8:] if s.lr is not None]
    if len(last) < 8 or len(now) < _FEW_LRS:
        return silent("learning rate", "too few rates are reported")
    (begin, low), (end, high) = last[0], last[-1]
    slope, tolerance = (high - low) / (end - begin), _SUDDEN * abs(high)
    first = min(now)
    if abs(now[first] - high) > tolerance + 8 * abs(slope) * (first - end):
        why = f"the learning rate was {high:.4g} at step {end} and is {now[first]:.4g} at step {first}"
        begun = [(now[s], lr) for s in sorted(now)[: _FEW_LRS - 1] if (lr := ancestor.trail.lr(s - end)) is not None]
        again = bool(begun) and all(_same(here, past) for here, past in begun)
        steady = len(set(now.values())) == 1 and now[first] >= max([*ancestor.trail.lrs, 0.0]) * (1 - PRINTED)
        return contradicted(LOST if again or steady else OTHER_LR, high, now[first], why)
    if len(now) >= 2 * _FEW_LRS and (twice := _two_steps_for_each(ancestor, now)) is not None:
        return contradicted(TWICE, high, now[max(now)], twice)
    return Check("learning rate", high, now[first], found=Proof.CONFIRMED)


def _two_steps_for_each(ancestor: Ancestor, now: Mapping[int, float]) -> str | None:
    """Whether the rates move by twice what the last ones moved by, along the parabola through those."""
    known = {s.global_step: s.lr for s in ancestor.recent if s.lr is not None}
    end = max(known)
    points = [known.get(end - back) for back in (0, 16, 32)]
    if None in points:
        return None
    last, middle, first = (point or 0.0 for point in points)
    slope, bend = (3 * last - 4 * middle + first) / 32, (last - 2 * middle + first) / 256

    def moved_by(steps: int) -> float:
        return slope * steps + bend * steps * steps / 2

    for step in (sorted(now)[len(now) // 2], max(now)):
        made, due, twice = now[step] - last, moved_by(step - end), moved_by(2 * (step - end))
        if abs(due) < 10 * PRINTED * abs(last) * (step - end) / FIRST or abs(made - twice) > 0.2 * abs(made - due):
            return None
    return f"the learning rate has moved by {made:.3g} in {step - end} steps, and {due:.3g} is due"
