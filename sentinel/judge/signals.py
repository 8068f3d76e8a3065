"""Signals: one formula each, with its source."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

__all__ = ["BestMean", "NoiseBand"]

_MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normal noise: 1 / Phi^-1(3/4)."""


class NoiseBand:
    """Where a signal's own noise lets it be, learnt only from values that stayed inside.

    level = median of the last accepted values; sigma = 1.4826 * median(|difference of neighbours|) / sqrt(2): taken
    from differences, so that a falling loss does not count its own fall as noise. upper = level + max(k * sigma,
    floor * |level|). A value above it is not learnt: a baseline never learns the illness.

    Source: the median absolute deviation of differences, as in Donoho & Johnstone 1994, "Ideal spatial adaptation by
    wavelet shrinkage", section 4.2 (finest-scale coefficients); k and the floor are `Thresholds`.
    """

    def __init__(self, *, sigmas: float, floor: float, window: int, min_samples: int) -> None:
        self._sigmas = sigmas
        self._floor = floor
        self._min_samples = min_samples
        self._values: deque[float] = deque(maxlen=window)
        self._differences: deque[float] = deque(maxlen=window)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def ready(self) -> bool:
        """Whether enough values were seen for the band to mean anything."""
        return len(self._values) >= self._min_samples

    @property
    def level(self) -> float:
        """Median of the accepted values, in the signal's unit; nan before the first."""
        return median(self._values) if self._values else math.nan

    @property
    def sigma(self) -> float:
        """Robust standard deviation of one value around its trend, in the signal's unit; 0 before the second."""
        return _MAD_TO_SIGMA * median(self._differences) / math.sqrt(2) if self._differences else 0.0

    def upper(self, widened: float = 0.0) -> float:
        """The band's upper edge, inf until the band is ready; `widened` raises the floor (share of the level)."""
        if not self.ready:
            return math.inf
        level = self.level
        return level + max(self._sigmas * self.sigma, max(self._floor, widened) * abs(level))

    def learn(self, value: float) -> None:
        """Takes a finite value that stayed inside."""
        if self._values:
            self._differences.append(abs(value - self._values[-1]))
        self._values.append(value)

    def clear(self) -> None:
        """Forgets everything: what comes is not comparable with what was."""
        self._values.clear()
        self._differences.clear()


class BestMean:
    """The moving mean of a loss over a window, and the smallest it has been."""

    def __init__(self, window: int) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self.best: float | None = None
        """Smallest full-window mean so far, in the loss's unit; None before the first full window."""
        self.best_step: int | None = None
        """The step that the best window ended at."""

    @property
    def mean(self) -> float | None:
        """Mean of the last full window; None while it is not full."""
        full = len(self._values) == self._values.maxlen
        return math.fsum(self._values) / len(self._values) if full else None

    def push(self, value: float, step: int) -> None:
        """Takes the next finite value."""
        self._values.append(value)
        mean = self.mean
        if mean is not None and (self.best is None or mean < self.best):
            self.best, self.best_step = mean, step

    def clear(self) -> None:
        """Forgets everything, the best too."""
        self._values.clear()
        self.best = self.best_step = None
