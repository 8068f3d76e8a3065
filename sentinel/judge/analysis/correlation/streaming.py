"""Pearson's coefficient as pairs come in, O(1) a pair.

It keeps co-moments about a running mean, never sums of squares, and measures values from an origin near them: a loss
scale of 10^9 that moves by 1 loses no digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

MIN_PAIRS = 3  # Fewer pairs than this have a coefficient that says nothing


class CoMoments(NamedTuple):
    """n pairs (x, y), by their means and the sums of squares and products around them."""

    n: int = 0
    mean_x: float = 0.0
    mean_y: float = 0.0
    sxx: float = 0.0
    syy: float = 0.0
    sxy: float = 0.0

    @classmethod
    def of(cls, x: NDArray[np.float64], y: NDArray[np.float64]) -> CoMoments:
        """Those of whole columns, in two passes."""
        if not len(x):
            return cls()
        mean_x, mean_y = float(x.mean()), float(y.mean())
        dx, dy = x - mean_x, y - mean_y
        return cls(len(x), mean_x, mean_y, float(dx @ dx), float(dy @ dy), float(dx @ dy))

    def pushed(self, x: float, y: float) -> CoMoments:
        """With one pair more. Source: Welford 1962, "Note on a method for calculating corrected sums of squares"."""
        n = self.n + 1
        dx, dy = x - self.mean_x, y - self.mean_y
        share = self.n / n
        return CoMoments(
            n,
            self.mean_x + dx / n,
            self.mean_y + dy / n,
            self.sxx + dx * dx * share,
            self.syy + dy * dy * share,
            self.sxy + dx * dy * share,
        )

    @property
    def r(self) -> float:
        """Pearson's coefficient, sxy / sqrt(sxx syy); nan when either is constant, or of fewer than 3 pairs."""
        if self.n < MIN_PAIRS or self.sxx <= 0 or self.syy <= 0:
            return math.nan
        return max(-1.0, min(1.0, self.sxy / (math.sqrt(self.sxx) * math.sqrt(self.syy))))


class StreamingPearson:
    """Over all pairs so far. Pairs that are not finite are left out, and counted."""

    def __init__(self) -> None:
        self._moments = CoMoments()
        self._origin = (0.0, 0.0)
        self.left_out = 0  # Pairs in which a value was nan or inf

    @classmethod
    def of(cls, x: Sequence[float] | NDArray[np.float64], y: Sequence[float] | NDArray[np.float64]) -> StreamingPearson:
        """As if every pair of the two columns had been pushed, at the speed of arrays."""
        xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        finite = np.isfinite(xs) & np.isfinite(ys)
        made = cls()
        made.left_out = int(len(xs) - finite.sum())
        if finite.any():
            xs, ys = xs[finite], ys[finite]
            made._origin = float(xs[0]), float(ys[0])
            made._moments = CoMoments.of(xs - xs[0], ys - ys[0])
        return made

    def push(self, x: float, y: float) -> None:
        if not (math.isfinite(x) and math.isfinite(y)):
            self.left_out += 1
            return
        if not self._moments.n:
            self._origin = x, y
        self._moments = self._moments.pushed(x - self._origin[0], y - self._origin[1])

    @property
    def n(self) -> int:
        return self._moments.n

    @property
    def r(self) -> float:
        """Pearson's coefficient, as scipy.stats.pearsonr has it for the same pairs."""
        return self._moments.r

    @property
    def p_value(self) -> float:
        return float(p_values(self.r, self.n))


def p_values(r: ArrayLike, n: ArrayLike) -> NDArray[np.float64]:
    """Two-sided p of a coefficient r of n independent normal pairs: 2 I_(1 - |r|)/2 (n/2 - 1, n/2 - 1); 1 for n <= 2.

    The same as Student's t = r sqrt((n - 2) / (1 - r^2)) with n - 2 degrees of freedom; n need not be whole.
    Source: Student 1908, "Probable error of a correlation coefficient"; so does scipy.stats.pearsonr.
    """
    size = np.asarray(n, dtype=np.float64)
    half = np.maximum(size / 2 - 1, np.finfo(np.float64).tiny)
    p = 2 * special.betainc(half, half, (1 - np.abs(np.asarray(r, dtype=np.float64))) / 2)
    found: NDArray[np.float64] = np.where(np.isnan(r), np.nan, np.where(size > 2, np.minimum(p, 1.0), 1.0))
    return found
