"""Slower than it was, or than its sibling: the loss against the run's own trend and against a reference run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Lag", "Reference", "Trend"]

_PER_OCTAVE = 4
"""Means kept for each doubling of the steps: a trend of months is a few dozen numbers."""

_FITTED = 8
"""Means that a trend is drawn through: two doublings, up to one doubling ago."""

_ABOVE_TREND = 0.10
"""Share above its own extrapolation at which a loss that stands still is a plateau."""

_STANDS_STILL = 0.01
"""Share that a loss falls by in a doubling of its steps, at most, where it stands still."""

_ABOVE_REFERENCE = 0.20
"""Share above the reference run at the same step. tr8-104B stood at 6.3 where its 13B sibling stood at 4.5: 0.40."""

_REFERENCE_FROM_STEP = 500
"""Before, LR warmups of different length make siblings differ by more than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The run is slower than it should be; no ground for a rollback by itself, but for a look."""

    since_step: int
    reason: str


class Reference:
    """Another run's loss over its steps, to be compared with at the same step."""

    def __init__(self, name: str, points: Sequence[tuple[int, float]]) -> None:
        """`points` are (step, loss in nats), by step; smooth them first, a single loss is noise."""
        self.name = name
        self._steps = [step for step, _ in points]
        self._losses = [loss for _, loss in points]

    @property
    def points(self) -> list[tuple[int, float]]:
        """(step, loss in nats), by step."""
        return list(zip(self._steps, self._losses, strict=True))

    @property
    def ends(self) -> tuple[int, int] | None:
        """The first and the last step that is known of; None where nothing is."""
        return (self._steps[0], self._steps[-1]) if self._steps else None

    def loss(self, step: int) -> float | None:
        """The reference's loss at the step, interpolated; None outside of what is known of it."""
        at = bisect_right(self._steps, step)
        if at == 0 or (at == len(self._steps) and step != self._steps[-1]):
            return None
        if at == len(self._steps):
            return self._losses[-1]
        left, right = self._steps[at - 1], self._steps[at]
        share = (step - left) / (right - left)
        return self._losses[at - 1] + share * (self._losses[at] - self._losses[at - 1])


@dataclass(slots=True, kw_only=True)
class _Mean:
    """One that is not complete yet."""

    bucket: int
    first_step: int
    losses: float
    """Their sum, nats."""

    count: int


class Trend:
    """Means of the loss, four for each doubling of the steps, and what they say together.

    A power law, loss = a * step^-b, is drawn through the two doublings that ended one doubling ago (Kaplan et al. 2020,
    "Scaling Laws for Neural Language Models", section 5: learning curves are power laws after the warmup). Plateau: the
    newest mean is 10 % above it, and the loss has fallen by less than 1 % in the last doubling.
    """

    def __init__(self, references: Sequence[Reference] = ()) -> None:
        self.references = references
        self.clear()

    def clear(self) -> None:
        """Forgets everything: what comes is not comparable with what was."""
        self._means: list[tuple[int, float]] = []
        self._mean: _Mean | None = None
        self._behind: dict[str, int] = {}
        self.lag: Lag | None = None
        """What the last complete mean says; None where it is as it should be."""

    def push(self, step: int, loss: float) -> bool:
        """Takes the median of a block that ends at the step. Whether a mean is complete, and `lag` is new."""
        bucket = int(_PER_OCTAVE * math.log2(max(1, step)))
        mean = self._mean
        if mean is not None and mean.bucket == bucket:
            mean.losses += loss
            mean.count += 1
            return False
        self._mean = _Mean(bucket=bucket, first_step=step, losses=loss, count=1)
        if mean is None:
            return False
        self._means.append((mean.first_step, mean.losses / mean.count))
        self.lag = self._plateau() or self._behind_reference()
        return True

    def _plateau(self) -> Lag | None:
        if len(self._means) < _FITTED + _PER_OCTAVE:
            return None
        step, now = self._means[-1]
        since, before = self._means[-1 - _PER_OCTAVE]
        fitted = self._means[-_FITTED - _PER_OCTAVE : -_PER_OCTAVE]
        if min(now, before, *(loss for _, loss in fitted)) <= 0 or now < before * (1 - _STANDS_STILL):
            return None
        expected = _extrapolated(fitted, step)
        if now <= expected * (1 + _ABOVE_TREND):
            return None
        reason = f"the loss has stood at {now:.3f} since step {since}; by its own trend it would be at {expected:.3f}"
        return Lag(since_step=since, reason=reason)

    def _behind_reference(self) -> Lag | None:
        step, now = self._means[-1]
        for reference in self.references:
            there = reference.loss(step)
            if there is None or step < _REFERENCE_FROM_STEP or now <= there * (1 + _ABOVE_REFERENCE):
                self._behind.pop(reference.name, None)
                continue
            since = self._behind.setdefault(reference.name, step)
            if since != step:  # twice in a row
                reason = f"the loss stands at {now:.3f} at step {step}, where {reference.name} stood at {there:.3f}"
                return Lag(since_step=since, reason=reason)
        return None


def _extrapolated(points: Sequence[tuple[int, float]], step: int) -> float:
    """The power law through the points (step, loss), at a later step."""
    xs = [math.log(max(1, at)) for at, _ in points]
    ys = [math.log(loss) for _, loss in points]
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return math.exp(mean_y + slope * (math.log(max(1, step)) - mean_x))
