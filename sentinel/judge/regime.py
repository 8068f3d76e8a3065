"""Planned changes: what the trainer itself reports to have changed, and how far the loss may move for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.judge.thresholds import Thresholds

__all__ = ["Change", "Regime"]

_SETTLES_SAMPLES = 64
"""Samples without a further change after which the new regime is the one that is compared with."""

_REWARMED = 1.02
"""A learning rate above so many times the lowest since the regime settled is rising; less is rounding in a log."""

_AS_PRINTED = 1.0005
"""A learning rate up to so many times another is the same one, printed to four digits."""

_TOLD_FACTOR = 1.5
"""Changes by less than this factor are part of a schedule, and not told as an event of their own."""

_TAIL = 0.05
"""Share of the highest learning rate below which its changes are the tail of a decay: factors grow there."""

_BATCH_TOLERANCE = 0.05
"""How far the loss may move (share) when the batch changes: the gradient's noise does, and the step with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One planned change."""

    step: int
    what: str
    """In words: `the sequence length went from 64 to 128`."""

    told: bool
    """Whether it is an event worth a line."""

    comparable: bool = True
    """False where no loss before compares with those after (a shorter sequence length, other data)."""


class Regime:
    """Follows learning rate, sequence length and batch; says how much wider the judge's tolerances are now."""

    def __init__(self, thresholds: Thresholds, planned: Iterable[int] = ()) -> None:
        self._thresholds = thresholds
        self._planned = sorted(planned, reverse=True)
        self._lr: float | None = None
        self._lowest_lr: float | None = None
        self._highest_lr = 0.0
        self._factor = 0.0
        self._seqlen: float | None = None
        self._batch: float | None = None
        self._unsettled = 0
        self.widened = 0.0
        """Tolerance in force beside the usual ones (share of the level); 0 in a settled regime."""

    def take(self, step: int, seqlen: float | None, batch: float | None) -> Change | None:
        """One sample's length and batch; what is None was not measured."""
        if self._planned and step >= self._planned[-1]:
            while self._planned and step >= self._planned[-1]:
                self._planned.pop()
            return Change(step=step, what="a planned change of the run", told=True, comparable=False)
        if seqlen is not None and seqlen != self._seqlen:
            before, self._seqlen = self._seqlen, seqlen
            if before is not None:
                self._widen(self._thresholds.lengthening_tolerance)
                what = f"the sequence length went from {before:.0f} to {seqlen:.0f}"
                return Change(step=step, what=what, told=_told(before, seqlen), comparable=seqlen > before)
        if batch is not None and batch != self._batch:
            before, self._batch = self._batch, batch
            if before is not None:
                self._widen(_BATCH_TOLERANCE)
                what = f"the batch went from {before:.0f} to {batch:.0f} samples"
                return Change(step=step, what=what, told=_told(before, batch))
        return None

    def is_quiet(self, step: int) -> bool:
        """Whether no person has said that something changes by this step."""
        return not self._planned or step < self._planned[-1]

    def end_block(self, step: int, samples: int, lr: float | None) -> Change | None:
        """The end of a block of so many samples, the last of which had this learning rate."""
        change = None if lr is None else self._note_rate(step, lr)
        self._unsettled = max(0, self._unsettled - samples)
        return change

    def settle(self, above_best: float) -> bool:
        """Whether the regime has just settled, and only losses from here on are compared.

        `above_best` is how far the loss is above what was best before (share). More than the tolerance that was in
        force is not what the change explains: what was best stays what is compared with.
        """
        if self.widened == 0.0 or self._unsettled:
            return False
        explained = above_best <= self.widened
        self.widened, self._lowest_lr = 0.0, self._lr
        return explained

    def _note_rate(self, step: int, lr: float) -> Change | None:
        before, self._lr = self._lr, lr
        lowest = self._lowest_lr = lr if self._lowest_lr is None else min(self._lowest_lr, lr)
        rising = before is not None and lr > before and lr > _REWARMED * lowest
        known, self._highest_lr = lr <= _AS_PRINTED * self._highest_lr, max(lr, self._highest_lr)
        if rising and known:
            self._widen(self._thresholds.rewarm_tolerance)
        elif rising and not _told(before or lr, lr):  # at once to where it has never been is a mistake, no warmup
            self._widen(self._thresholds.warmup_tolerance)
        factor, self._factor = self._factor, 0.0 if before is None else _log_factor(before, lr)
        of_a_schedule = self._factor < 2 * factor or lr < _TAIL * self._highest_lr or (rising and not known)
        if before is None or not _told(before, lr) or of_a_schedule:
            return None  # a first warmup and the end of a decay are no changes of regime
        return Change(step=step, what=f"the learning rate went from {before:.3g} to {lr:.3g}", told=True)

    def _widen(self, tolerance: float) -> None:
        self.widened = max(self.widened, tolerance)
        self._unsettled = _SETTLES_SAMPLES


def _told(before: float, after: float) -> bool:
    return _log_factor(before, after) >= math.log(_TOLD_FACTOR)


def _log_factor(before: float, after: float) -> float:
    low, high = sorted((abs(before), abs(after)))
    return math.log(high / low) if low > 0 else (math.inf if high > 0 else 0.0)
