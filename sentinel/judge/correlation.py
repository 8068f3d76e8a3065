"""Pearson's correlation of the loss ratio with Adam's variance, as in the paper's Table 3, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sentinel.vocabulary.sample import Sample

__all__ = ["SIGNALS", "Correlation", "Correlations", "correlate"]

SIGNALS = ("adam_variance_l1", "adam_variance_max")
"""What Table 3 of Li, Zhang & He 2022 correlates the loss ratio with; fields of Sample."""

_MIN_SAMPLES = 3
"""Fewer pairs than this have a coefficient that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """One signal against the loss ratio, of the same step."""

    signal: str
    lag: int
    """Steps that the signal is taken earlier; 0 here."""

    pearson_r: float
    """Coefficient in -1 … 1; nan when either series is constant or too short."""

    p_value: float
    """Two-sided, for independent samples, as the paper reports it. Training series are not independent."""

    n: int
    """Pairs of finite values."""

    n_effective: float
    """Independent pairs that the n are worth, given the autocorrelation of both series."""

    p_value_adjusted: float
    """Two-sided, for n_effective pairs, times the number of signals tested (Bonferroni), at most 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlations:
    """The table, with what it left out."""

    rows: tuple[Correlation, ...]
    infinite_ratios: int
    """Steps left out because their loss ratio is inf: the loss was not finite."""


def correlate(samples: Sequence[Sample]) -> Correlations:
    """Loss ratio against each of SIGNALS over the samples that have both; skipped steps are left out."""
    taken = [s for s in samples if not s.skipped and s.loss_ratio is not None]
    infinite = sum(math.isinf(s.loss_ratio) for s in taken if s.loss_ratio is not None)
    rows = []
    for signal in SIGNALS:
        pairs = [(s.loss_ratio, getattr(s, signal)) for s in taken]
        finite = np.array([p for p in pairs if p[1] is not None and all(map(math.isfinite, p))], dtype=np.float64)
        rows.append(_row(signal, finite.reshape(-1, 2)))
    return Correlations(rows=tuple(rows), infinite_ratios=infinite)


def _row(signal: str, pairs: NDArray[np.float64]) -> Correlation:
    n = len(pairs)
    x, y = pairs[:, 0], pairs[:, 1]
    if n < _MIN_SAMPLES or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Correlation(
            signal=signal,
            lag=0,
            pearson_r=math.nan,
            p_value=math.nan,
            n=n,
            n_effective=float(n),
            p_value_adjusted=math.nan,
        )
    r, p = stats.pearsonr(x, y)
    effective = n_effective(x, y)
    adjusted = min(1.0, len(SIGNALS) * _p_value(float(r), effective))
    return Correlation(
        signal=signal,
        lag=0,
        pearson_r=float(r),
        p_value=float(p),
        n=n,
        n_effective=effective,
        p_value_adjusted=adjusted,
    )


def n_effective(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Independent pairs that n autocorrelated ones are worth: n / (1 + 2 sum_k (1 - k/n) r_x(k) r_y(k)), 2 … n.

    Sums over lags up to n/5, as far as autocorrelations can be estimated.
    Source: Pyper & Peterman 1998, "Comparison of methods to account for autocorrelation in correlation analyses".
    """
    n = len(x)
    lags = range(1, max(1, n // 5) + 1)
    overlap = sum((1 - k / n) * _autocorrelation(x, k) * _autocorrelation(y, k) for k in lags)
    return float(min(n, max(2.0, n / max(1 + 2 * overlap, 1 / n))))


def _autocorrelation(x: NDArray[np.float64], lag: int) -> float:
    centred = x - x.mean()
    return float(centred[:-lag] @ centred[lag:] / (centred @ centred))


def _p_value(r: float, n: float) -> float:
    if n <= 2 or abs(r) >= 1:
        return 1.0 if n <= 2 else 0.0
    t = r * math.sqrt((n - 2) / (1 - r * r))
    return float(2 * stats.t.sf(abs(t), n - 2))
