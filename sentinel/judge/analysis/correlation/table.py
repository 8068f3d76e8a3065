"""The paper's Table 3, and what is left of it once trend, memory and the number of looks are accounted for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from sentinel.judge.analysis.correlation.lagged import (
    Floats,
    StepGrid,
    autocorrelation,
    cross_correlation,
    n_effective,
    prewhitened,
)

SIGNALS = ("adam_variance_l1", "adam_variance_max")  # Of Table 3 of Li, Zhang & He 2022; always in the table
LAGS = 200  # Samples on either side that lagged coefficients reach; no further than a quarter of the series
MIN_PAIRS = 3  # Fewer pairs than this have a coefficient that says nothing
Method = Literal["plain", "prewhitened"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    signal: str
    lag: int  # Steps that the signal is taken earlier than the loss ratio; below 0 it is taken later
    pearson_r: float  # Coefficient in -1 … 1; nan when either series is constant or too short
    p_value: float  # Two-sided, for independent samples, as the paper reports it. Training series are not independent.
    n: int  # Pairs of finite values
    n_effective: float  # Independent pairs that the n are worth, given the autocorrelation of both series
    # Two-sided, for n_effective pairs, corrected (Holm) for all tests of this method: over the signals, and over the
    # lags where lags were searched. Only a prewhitened one says anything about series that have a trend.
    p_value_adjusted: float
    method: Method = "plain"  # plain: the readings as they are; prewhitened: see `prewhitened`


@dataclass(frozen=True, slots=True, kw_only=True)
class LagProfile:
    """One signal against the loss ratio at all lags, both prewhitened. The arrays are (lags,) each."""

    signal: str
    lags: NDArray[np.int64]  # In steps; positive where the signal is taken earlier than the loss ratio
    r: Floats
    n: NDArray[np.int64]
    n_effective: Floats
    p: Floats
    p_adjusted: Floats

    def row(self, place: int) -> Correlation:
        return Correlation(
            signal=self.signal,
            lag=int(self.lags[place]),
            pearson_r=float(self.r[place]),
            p_value=float(self.p[place]),
            n=int(self.n[place]),
            n_effective=float(self.n_effective[place]),
            p_value_adjusted=float(self.p_adjusted[place]),
            method="prewhitened",
        )

    @property
    def rows(self) -> tuple[Correlation, ...]:
        return tuple(self.row(place) for place in range(len(self.lags)))

    @property
    def best(self) -> int | None:
        return None if np.isnan(self.r).all() else int(np.nanargmax(np.abs(self.r)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlations:
    rows: tuple[Correlation, ...]  # Each signal plain at lag 0, prewhitened at lag 0, prewhitened at its best lag
    infinite_ratios: int  # Steps left out because their loss ratio is inf: the loss was not finite
    profiles: tuple[LagProfile, ...] = ()


def correlations(
    columns: Mapping[str, ArrayLike], steps: ArrayLike, *, largest_lag: int = LAGS, always: Sequence[str] = SIGNALS
) -> Correlations:
    """`columns["loss_ratio"]` against every other column, (n,) each, of samples in the order in which they were made.

    nan is a value that is not there. Names of `always` have a row whatever they hold; another column has rows where it
    varies at all. Where a step does not lie after the one before, a new stretch begins that no lag reaches across.
    The tests are corrected by Holm's method, however they depend on one another. Plain coefficients are one family (the
    signals), prewhitened ones at lag 0 a second (the signals: the question that was asked beforehand), prewhitened ones
    at every lag a third (signals times lags, as searched).
    """
    at = np.asarray(steps, dtype=np.int64)
    ratio = np.asarray(columns["loss_ratio"], dtype=np.float64)
    values = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items() if name != "loss_ratio"}
    values = {name: v for name, v in values.items() if name in always or _varies(ratio, v)}
    values = {name: np.full(len(at), np.nan) for name in always} | values
    plain, profiles = [], []
    against: _Ratio | None = None
    for name, column in values.items():
        there = np.isfinite(column)
        axis = StepGrid.of(at[there], largest_lag)
        if against is None or not np.array_equal(against.axis.cells, axis.cells):
            against = _Ratio.of(axis, ratio[there])
        x = axis.spread(column[there])
        plain.append(_plain(name, x, against))
        profiles.append(_profile(name, prewhitened(x)[1:], against, largest_lag))
    corrected_plain = holm(np.array([row.p_value_adjusted for row in plain])).tolist()
    corrected = _corrected(profiles)
    at_zero = [p.row(len(p.lags) // 2) for p in profiles]
    corrected_at_zero = holm(np.array([row.p_value_adjusted for row in at_zero])).tolist()
    at_best = [p.row(p.best) for p in corrected if p.best is not None and p.lags[p.best] != 0]
    return Correlations(
        rows=(
            *(replace(row, p_value_adjusted=p) for row, p in zip(plain, corrected_plain, strict=True)),
            *(replace(row, p_value_adjusted=p) for row, p in zip(at_zero, corrected_at_zero, strict=True)),
            *at_best,
        ),
        infinite_ratios=int(np.isposinf(ratio).sum()),
        profiles=corrected,
    )


def holm(p: Floats) -> Floats:
    """p values corrected for their number: the i-th smallest times (m - i + 1), never below a smaller one's; nan stays.
    Source: Holm 1979, "A simple sequentially rejective multiple test procedure"."""
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    corrected = np.full(len(p), np.nan)
    factors = len(order) - np.arange(len(order))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * factors)) if len(order) else []
    return corrected


def _varies(ratio: Floats, column: Floats) -> bool:
    pairs = column[np.isfinite(column) & np.isfinite(ratio)]
    return len(pairs) >= MIN_PAIRS and bool(np.ptp(pairs) > 0)


@dataclass(frozen=True, slots=True)
class _Ratio:
    """The loss ratio on a signal's axis: at the signal's own steps. Signals of the same steps share it."""

    axis: StepGrid
    values: Floats
    memory: Floats  # Its autocorrelations up to n/5
    whitened: Floats  # `prewhitened`, without the first, which never has a predecessor
    whitened_memory: Floats  # The autocorrelations of that, up to twice LAGS

    @classmethod
    def of(cls, axis: StepGrid, ratio: Floats) -> _Ratio:
        values = axis.spread(ratio)
        lags = max(0, min(int(np.isfinite(values).sum()) // 5, len(values) - 1))
        whitened = prewhitened(values)[1:]
        reach = max(0, min(lags, 2 * LAGS, len(whitened) - 1))
        return cls(axis, values, autocorrelation(values, lags)[0], whitened, autocorrelation(whitened, reach)[0])


def _plain(signal: str, x: Floats, ratio: _Ratio) -> Correlation:
    both = np.isfinite(x) & np.isfinite(ratio.values)
    r, n = pearson(x[both], ratio.values[both]), int(both.sum())
    effective = float(n) if math.isnan(r) else n_effective(x, both, ratio.memory)
    return Correlation(
        signal=signal,
        lag=0,
        pearson_r=r,
        p_value=float(p_values(r, n)),
        n=n,
        n_effective=effective,
        p_value_adjusted=float(p_values(r, effective)),
    )


def pearson(x: Floats, y: Floats) -> float:
    """The coefficient of finite pairs, in -1 … 1; nan where either is constant, or there are fewer than 3. Values are
    measured from the first pair: a loss scale of 10^9 that moves by 1 loses no digits."""
    if len(x) < MIN_PAIRS:
        return math.nan
    x, y = x - x[0], y - y[0]
    dx, dy = x - x.mean(), y - y.mean()
    sxx, syy = float(dx @ dx), float(dy @ dy)
    if sxx <= 0 or syy <= 0:
        return math.nan
    return max(-1.0, min(1.0, float(dx @ dy) / (math.sqrt(sxx) * math.sqrt(syy))))


def p_values(r: ArrayLike, n: ArrayLike) -> Floats:
    """Two-sided p of a coefficient r of n independent normal pairs: 2 I_(1 - |r|)/2 (n/2 - 1, n/2 - 1); 1 for n <= 2.
    Student's t = r sqrt((n - 2) / (1 - r^2)) with n - 2 degrees of freedom; n need not be whole. Source: Student 1908,
    "Probable error of a correlation coefficient"; so does scipy.stats.pearsonr."""
    size = np.asarray(n, dtype=np.float64)
    half = np.maximum(size / 2 - 1, np.finfo(np.float64).tiny)
    p = 2 * special.betainc(half, half, (1 - np.abs(np.asarray(r, dtype=np.float64))) / 2)
    found: Floats = np.where(np.isnan(r), np.nan, np.where(size > 2, np.minimum(p, 1.0), 1.0))
    return found


def _profile(signal: str, x: Floats, ratio: _Ratio, largest_lag: int) -> LagProfile:
    y = ratio.whitened
    both = np.isfinite(x) & np.isfinite(y)
    pairs = int(both.sum())
    lags = max(0, min(largest_lag, pairs // 4))
    if not pairs:
        nothing = np.full(1, np.nan)
        zeros = np.zeros(1, dtype=np.int64)
        return LagProfile(
            signal=signal, lags=zeros, r=nothing, n=zeros, n_effective=np.zeros(1), p=nothing, p_adjusted=nothing
        )
    r, n = cross_correlation(x, y, lags)
    effective: Floats = n.astype(np.float64) * (n_effective(x, both, ratio.whitened_memory) / pairs)
    return LagProfile(
        signal=signal,
        lags=np.arange(-lags, lags + 1) * ratio.axis.interval_steps,
        r=r,
        n=n,
        n_effective=effective,
        p=p_values(r, n),
        p_adjusted=_p_values_of_news(r, effective, _kurtosis(x) * _kurtosis(y) / pairs),
    )


def _p_values_of_news(r: Floats, n: Floats, excess_kurtosis: float) -> Floats:
    """Two-sided p of coefficients whose tails are as heavy as the pairs make them.

    Under independence sum x y has the excess kurtosis k_x k_y / n (k = E z^4 of standardised values; 9/n for normal
    ones). Student's t with nu degrees of freedom has 6 / (nu - 4): nu is taken to match, the variance left at 1/n. It
    matters where both series stand still but for a few jumps, and three jumps that meet would look like proof.
    """
    nu = 4 + 6 / excess_kurtosis
    size = np.maximum(n, 2 + 1e-9)
    with np.errstate(divide="ignore"):
        t = np.abs(r) * np.sqrt((size - 2) / (1 - r * r)) * math.sqrt(nu / (nu - 2))
    found: Floats = np.where(n > 2, 2 * special.stdtr(np.minimum(nu, size - 2), -t), 1.0)
    return np.where(np.isnan(r), np.nan, found)


def _kurtosis(x: Floats) -> float:
    """E z^4 of the standardised finite values, 1 or more; 3 for normal ones, and where nothing varies."""
    z = x[np.isfinite(x)]
    z = z - z.mean() if len(z) else z
    variance = float(np.mean(z * z)) if len(z) else 0.0
    return max(1.0, float(np.mean(np.square(z * z))) / variance**2) if variance > 0 else 3.0


def _corrected(profiles: Sequence[LagProfile]) -> tuple[LagProfile, ...]:
    if not profiles:
        return ()
    p = holm(np.concatenate([profile.p_adjusted for profile in profiles]))
    parts = np.split(p, np.cumsum([len(profile.lags) for profile in profiles])[:-1])
    return tuple(replace(profile, p_adjusted=part) for profile, part in zip(profiles, parts, strict=True))
