"""Divergences that need no patience: nan in its disguises, skipped updates, a loss far too high, a bad resume."""

from __future__ import annotations

import math
from collections import deque

from sentinel.judge.thresholds import Thresholds

__all__ = ["FarAbove", "Hopeless", "NotFinite", "Overflows", "Vanished", "rising_since"]

_MATURE_STEPS = 1000
"""Steps after which a model that knows no more than a uniform guess is not one at its beginning."""

_FIRST_SAMPLES = 3
"""Losses that must all be hopeless: one could be a batch of another kind."""

_FAR_SAMPLES = 2
"""Losses running that must be far above the level: one could be a single broken batch."""

_RISING_SAMPLES = 5
_RISING_FACTOR = 1.25
"""What `rising_since` calls rising: so many losses in a row, and so many times the first."""

_FAR_FROM_ZERO = 0.1
"""Nats. A log of four decimals shows 0.0 below 0.00005: three decades further down, and no loss skips those at once."""

_BEGUN_SAMPLES = 8
"""Losses before a zero can be impossible: an easy task falls to nothing in its first few, where each is a long mean."""


class NotFinite:
    """Tells a nan that reached the weights from one that did not.

    Adam's variance is nan: known at once. A loss that is nan or inf twice running, with updates that were not skipped:
    the weights that the second was computed with are not numbers. Once, and a number after it: it was not in them.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self.after: int | None = None
        """The step of the sample before it; what was not reported since then may have been nan already."""
        self.steps = 0

    @property
    def onset_range(self) -> tuple[int, int] | None:
        """The first step that was not a number: earliest and latest; None while all are."""
        if self.since is None:
            return None
        return (self.since if self.after is None else min(self.after + 1, self.since), self.since)

    def take(self, step: int, loss: float, variance_l1: float | None, *, after: int | None = None) -> str | None:
        """The reason for an alarm, or None; afterwards `steps` is 0 where the sample was all numbers.

        `after` is the step of the sample before this one, None where it is the first.
        """
        variance_nan = variance_l1 is not None and math.isnan(variance_l1)
        if math.isfinite(loss) and not variance_nan:
            self.since, self.after, self.steps = None, None, 0
            return None
        if self.since is None:
            self.since, self.after = step, after
        self.steps += 1
        if not variance_nan and self.steps < 2:
            return None
        what = "Adam's variance is nan" if variance_nan else "the loss is not a number"
        return f"{what} since step {self.since}: nan is in the weights"


class Vanished:
    """A loss of exactly 0.0 where none before it was anywhere near: nan, by the hand of a trainer that hides it.

    Hugging Face's Trainer leaves a loss that is not a number out of its mean (`logging_nan_inf_filter`, on by default),
    and logs 0.0 where all were left out; its versions before 4.38 log no gradient norm that would tell. A zero or two
    are batches without labels.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._limit = thresholds.patience_samples
        self._smallest = math.inf
        self._samples = 0
        self.onset_range: tuple[int, int] | None = None
        """The first step of the zeros: earliest and latest; None while there are none."""
        self.run = 0
        """Zeros in a row, up to now."""

    def take(self, step: int, loss: float, after: int | None) -> bool:
        """Whether this finite loss is none; `after` is the step of the sample before it, None where it is the first."""
        if loss != 0.0 or self._smallest < _FAR_FROM_ZERO or self._samples < _BEGUN_SAMPLES:
            self.believe(loss, 1)
            self.onset_range, self.run = None, 0
            return False
        if self.onset_range is None:
            self.onset_range = (step if after is None else min(after + 1, step), step)
        self.run += 1
        return True

    def believe(self, smallest: float, samples: int) -> None:
        """Takes so many losses, the smallest of which is this: they are what they say."""
        self._smallest = min(self._smallest, smallest)
        self._samples += samples

    @property
    def certain(self) -> bool:
        """Whether there were too many for batches without labels."""
        return self.run >= self._limit


class Overflows:
    """Updates that were skipped, whether the trainer says so or only its loss scale does."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._limit = thresholds.skipped_run_steps
        self._scale: float | None = None
        self.run = 0
        """Updates skipped in a row, up to now."""
        self.onset_range: tuple[int, int] | None = None
        """The first step of that row: earliest and latest; None while the newest update was made."""

    def take(self, step: int, skipped: bool, loss: float | None, loss_scale: float | None, after: int | None) -> bool:
        """Whether this sample's update was skipped: it says so, or its loss is no number and the loss scale fell.

        `after` is the step of the sample before it, None where it is the first.
        """
        before = self._scale
        self._scale = before if loss_scale is None else loss_scale
        fell = before is not None and loss_scale is not None and loss_scale < before
        if skipped or (fell and (loss is None or not math.isfinite(loss))):
            self._count(1, step if after is None else min(after + 1, step), step)
            return True
        self._end()
        return False

    def unseen(self, next_step: int, steps: int, skipped: int) -> None:
        """So many steps before the next one passed that no sample tells of, and so many of them were skipped: all, or
        the row is broken."""
        if steps and skipped >= steps:
            self._count(steps, next_step - steps, next_step - steps)
        elif steps:
            self._end()

    @property
    def too_many(self) -> bool:
        """Whether nothing moves any more."""
        return self.run >= self._limit

    def _count(self, steps: int, early: int, late: int) -> None:
        self.run += steps
        if self.onset_range is None:
            self.onset_range = (early, late)

    def _end(self) -> None:
        self.run, self.onset_range = 0, None


class FarAbove:
    """A loss so many times its level, and above a uniform guess, that no model with these weights comes back from.

    Two finite losses running: one could be a single broken batch. Below a uniform guess a multiple says little: the
    loss of an easy task goes from 0.001 to 0.1 and back.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._factor = thresholds.outright_factor
        self._guess = thresholds.hopeless_loss
        self._run = 0

    def take(self, loss: float, level: float) -> bool:
        """Whether this finite loss is the second one; `level` is the one from before the episode, nan or 0 for none."""
        far = level > 0 and loss > self._factor * level and loss > self._guess
        self._run = self._run + 1 if far else 0
        return self._run >= _FAR_SAMPLES


class Hopeless:
    """A run that is first seen in its middle with a loss no better than a uniform guess: it resumed from nothing."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._limit = thresholds.hopeless_loss
        self._first_step: int | None = None
        self._hopeless = 0
        self.samples = 0
        """Finite losses so far."""

    def take(self, step: int, loss: float) -> int | None:
        """The first step, once the first three losses have been hopeless."""
        self.samples += 1
        if self.samples > _FIRST_SAMPLES:
            return None
        self._first_step = step if self._first_step is None else self._first_step
        self._hopeless += loss >= self._limit and step >= _MATURE_STEPS
        return self._first_step if self._hopeless == _FIRST_SAMPLES else None

    def lasts(self, loss: float) -> bool:
        """Whether a run that began hopeless still is, at this loss."""
        return self._hopeless == _FIRST_SAMPLES and loss >= self._limit


def rising_since(recent: deque[tuple[int, float]]) -> tuple[int, float, float] | None:
    """First step above, first and last loss, where the last five losses have only risen, and by a quarter in all.

    For a run with too few samples for a band: of five independent losses, one order in 120 is this.
    """
    last = list(recent)[-_RISING_SAMPLES:]
    losses = [loss for _, loss in last]
    if len(losses) < _RISING_SAMPLES or losses[-1] < _RISING_FACTOR * losses[0] or losses != sorted(set(losses)):
        return None
    return last[1][0], losses[0], losses[-1]
