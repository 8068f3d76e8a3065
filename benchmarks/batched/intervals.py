"""Intervals at 95 %: of a share (Wilson), of a mean (Student), of paired counts (exact sign test)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

__all__ = ["Interval", "of_mean", "of_share", "sign_test"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and the interval around it."""

    value: float
    low: float
    high: float

    def through(self, function: Callable[[float], Any]) -> Interval:
        """Of a rising function of the value."""
        return Interval(float(function(self.value)), float(function(self.low)), float(function(self.high)))


def of_share(count: int, of: int) -> Interval:
    """Wilson 1927: it stays within 0 and 1, and is right for shares near them."""
    z = float(stats.norm.ppf(0.975))
    share, scale = count / of, 1 + z * z / of
    middle = (share + z * z / (2 * of)) / scale
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / scale
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def of_mean(values: ArrayLike) -> Interval:
    """Of two values or more; for pairs, of their differences."""
    found = np.asarray(values, dtype=float)
    mean = float(found.mean())
    half = float(stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found)))
    return Interval(mean, mean - half, mean + half)


def sign_test(better: int, worse: int) -> float:
    """Two-sided p of so many pairs for and against; ties are left out. Of yes and no it is McNemar's exact test."""
    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0
