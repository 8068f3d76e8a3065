"""Pearson's coefficient as pairs come in, O(1) a pair."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]
MIN_PAIRS = 3  # Fewer pairs than this have a coefficient that says nothing


class StreamingPearson:
    """Over all pairs so far. Pairs that are not finite are left out, and counted. It keeps co-moments about a running
    mean, never sums of squares, and measures values from the first pair: a loss scale of 10^9 that moves by 1 loses no
    digits. Source: Welford 1962, "Note on a method for calculating corrected sums of squares"."""

    def __init__(self) -> None:
        self.n = 0  # Pairs of finite values
        self.left_out = 0  # Pairs in which a value was nan or inf
        self._first_x = self._first_y = self._mean_x = self._mean_y = 0.0
        self._sxx = self._syy = self._sxy = 0.0

    @classmethod
    def of(cls, x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> StreamingPearson:
        """As if every pair of the two columns had been pushed, at the speed of arrays."""
        xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        finite = np.isfinite(xs) & np.isfinite(ys)
        made = cls()
        made.n = int(finite.sum())
        made.left_out = len(xs) - made.n
        if made.n:
            xs, ys = xs[finite], ys[finite]
            made._first_x, made._first_y = float(xs[0]), float(ys[0])
            xs, ys = xs - xs[0], ys - ys[0]
            made._mean_x, made._mean_y = float(xs.mean()), float(ys.mean())
            dx, dy = xs - made._mean_x, ys - made._mean_y
            made._sxx, made._syy, made._sxy = float(dx @ dx), float(dy @ dy), float(dx @ dy)
        return made

    def push(self, x: float, y: float) -> None:
        if not (math.isfinite(x) and math.isfinite(y)):
            self.left_out += 1
            return
        if not self.n:
            self._first_x, self._first_y = x, y
        dx, dy = x - self._first_x - self._mean_x, y - self._first_y - self._mean_y
        share = self.n / (self.n + 1)
        self.n += 1
        self._mean_x += dx / self.n
        self._mean_y += dy / self.n
        self._sxx += dx * dx * share
        self._syy += dy * dy * share
        self._sxy += dx * dy * share

    @property
    def r(self) -> float:
        """sxy / sqrt(sxx syy), as scipy.stats.pearsonr has it; nan where either is constant or pairs are too few."""
        if self.n < MIN_PAIRS or self._sxx <= 0 or self._syy <= 0:
            return math.nan
        return max(-1.0, min(1.0, self._sxy / (math.sqrt(self._sxx) * math.sqrt(self._syy))))

    @property
    def p_value(self) -> float:
        return float(p_values(self.r, self.n))


def p_values(r: ArrayLike, n: ArrayLike) -> Floats:
    """Two-sided p of a coefficient r of n independent normal pairs: 2 I_(1 - |r|)/2 (n/2 - 1, n/2 - 1); 1 for n <= 2.
    Student's t = r sqrt((n - 2) / (1 - r^2)) with n - 2 degrees of freedom; n need not be whole. Source: Student 1908,
    "Probable error of a correlation coefficient"; so does scipy.stats.pearsonr."""
    size = np.asarray(n, dtype=np.float64)
    half = np.maximum(size / 2 - 1, np.finfo(np.float64).tiny)
    p = 2 * special.betainc(half, half, (1 - np.abs(np.asarray(r, dtype=np.float64))) / 2)
    found: Floats = np.where(np.isnan(r), np.nan, np.where(size > 2, np.minimum(p, 1.0), 1.0))
    return found
