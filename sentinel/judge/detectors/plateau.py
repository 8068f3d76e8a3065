"""A plateau: the loss is above the run's own trend, or above a reference run. It recommends no rollback.

Own trend: a power law over two doublings of the steps; 10 % above it with less than 1 % gained in the last doubling. It
is over once the last 64 losses are 1 % lower, by three standard errors.
Reference run: 20 % above the other run at the same step, twice in a row (tr8-104B: 6.3 where its 13B sibling had 4.5).

Source: Kaplan et al. 2020, 5.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import mean, stdev

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known, Reset
from sentinel.judge.events import EventKind
from sentinel.judge.noise_band import PowerLaw
from sentinel.judge.reference import Reference

_PER_OCTAVE = 4  # Means kept for each doubling of the steps: a trend of months is a few dozen numbers
_FITTED = 8  # Means that a trend is drawn through: two doublings, up to one doubling ago
_ABOVE_TREND = 0.10  # Share above its own extrapolation at which a loss that stands still is a plateau
_STANDS_STILL = 0.01  # Share that a loss falls by in a doubling of its steps, at most, where it stands still
_NEWEST, _ERRORS = 8, 3  # Blocks whose mean shows that a loss falls again, and by how many of its standard errors
_ABOVE_REFERENCE = 0.20  # Share above the reference run. tr8-104B stood at 6.3, its 13B sibling at 4.5: 0.40
_REFERENCE_FROM_STEP = 500  # Before, LR warmups of different length make siblings differ by more than that


class Plateau(Detector):
    """Means of the loss, four for each doubling of the steps. The trend, loss = a * step^-b, is drawn through the two
    doublings that ended one doubling ago (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 5:
    learning curves are power laws after the warmup)."""

    per_settings = True

    def reset(self, why: Reset) -> None:
        if why is Reset.TREND:
            self._forget()

    def _forget(self) -> None:
        self._means: list[tuple[int, float]] = []
        self._bucket = self._first_step = self._count = 0  # of the mean that is not complete yet
        self._losses = 0.0  # their sum, nats
        self._newest: deque[float] = deque(maxlen=_NEWEST)  # medians of the last blocks, nats
        self._stood_at: float | None = None  # nats; None where no plateau by the own trend lasts
        self._behind: dict[str, int] = {}

    def check(self, block: Block, known: Known) -> Finding | None:
        if known.baseline.episode is not None:
            return None
        step, first_step, losses, count = block.last_step, self._first_step, self._losses, self._count
        bucket = int(_PER_OCTAVE * math.log2(max(1, step)))
        self._newest.append(block.median)
        if count and self._bucket == bucket:
            self._losses += block.median
            self._count += 1
            if self._stood_at is None or self._behind or not self._is_below(self._stood_at):
                return None
            self._stood_at = None
            return Finding.over(EventKind.PLATEAU, step)
        self._bucket, self._first_step, self._losses, self._count = bucket, step, block.median, 1
        if not count:
            return None
        self._means.append((first_step, losses / count))
        self._stood_at = None
        return self._above_trend() or self._above_reference(known.references) or Finding.over(EventKind.PLATEAU, step)

    def _above_trend(self) -> Finding | None:
        if len(self._means) < _FITTED + _PER_OCTAVE:
            return None
        step, now = self._means[-1]
        since, before = self._means[-1 - _PER_OCTAVE]
        fitted = self._means[-_FITTED - _PER_OCTAVE : -_PER_OCTAVE]
        if min(now, before, *(loss for _, loss in fitted)) <= 0 or now < before * (1 - _STANDS_STILL):
            return None
        expected = PowerLaw.through([at for at, _ in fitted], [loss for _, loss in fitted]).loss(step)
        if now <= expected * (1 + _ABOVE_TREND) or self._is_below(before):
            return None
        self._stood_at = before
        reason = f"the loss has stood at {now:.3f} since step {since}; by its own trend it would be at {expected:.3f}"
        return Finding(onset_range=(since, since), reason=reason, kind=EventKind.PLATEAU)

    def _is_below(self, level: float) -> bool:
        """Whether the newest losses are lower than one that stands still at that level, in nats."""
        if len(self._newest) < _NEWEST:
            return False
        return mean(self._newest) + _ERRORS * stdev(self._newest) / math.sqrt(_NEWEST) < level * (1 - _STANDS_STILL)

    def _above_reference(self, references: Sequence[Reference]) -> Finding | None:
        step, now = self._means[-1]
        for reference in references:
            there = reference.loss(step)
            if there is None or step < _REFERENCE_FROM_STEP or now <= there * (1 + _ABOVE_REFERENCE):
                self._behind.pop(reference.name, None)
                continue
            since = self._behind.setdefault(reference.name, step)
            if since != step:  # twice in a row
                reason = f"the loss stands at {now:.3f} at step {step}, where {reference.name} stood at {there:.3f}"
                return Finding(onset_range=(since, since), reason=reason, kind=EventKind.PLATEAU)
        return None
