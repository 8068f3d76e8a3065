"""Lagged correlations of series with holes (nan) by FFT: steps as cells, prewhitening, the effective sample size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from sentinel.judge.noise_band import MAD_TO_SIGMA

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrid:
    cells: NDArray[np.int64]  # (n,) strictly increasing, from 0
    interval_steps: int  # Steps from one cell to the next: the most frequent distance of neighbours (a log's interval)

    @classmethod
    def of(cls, steps: NDArray[np.int64], lags: int) -> StepGrid:
        """The axis of samples in the order in which they were made. A step that does not lie after the one before
        begins a new stretch (a rollback, another attempt): it is laid so far behind that no lag reaches across. A step
        between two cells (Megatron logs step 1, then 10, 20, …) goes to the nearer one."""
        if len(steps) < 2:
            return cls(cells=np.zeros(len(steps), dtype=np.int64), interval_steps=1)
        distances = np.diff(steps)
        interval = _mode(distances[distances > 0]) if (distances > 0).any() else 1
        places = np.rint((steps - _mode(steps % interval)) / interval).astype(np.int64)
        jumps = np.diff(places)
        n, breaks = len(steps), int(((distances <= 0) | (jumps > lags)).sum())
        # cells of a hole: beyond every lag, and n/5 (as far as n_effective looks) unless there are too many holes
        far = max(lags + 1, min(n // 5 + 1, 4 * n // max(1, breaks)))
        jumps[distances <= 0] = far
        cells = np.concatenate(([0], np.cumsum(np.clip(jumps, 1, far)))).astype(np.int64)
        return cls(cells=cells, interval_steps=interval)

    def spread(self, values: Floats) -> Floats:
        """(n,) values on the whole axis, (cells,): nan where there is no sample, or no finite value."""
        laid = np.full(int(self.cells[-1]) + 1 if len(self.cells) else 0, np.nan)
        laid[self.cells] = np.where(np.isfinite(values), values, np.nan)
        return laid


def _mode(values: NDArray[np.int64]) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts.argmax()])


def cross_correlation(x: Floats, y: Floats, lags: int) -> tuple[Floats, NDArray[np.int64]]:
    """Pearson's r of the pairs (x[t], y[t + k]) for k = -lags … lags, and how many pairs each has: (2 lags + 1,) each.

    A positive lag has x earlier. Each coefficient is what scipy.stats.pearsonr gives for its pairs; nan where either is
    constant or there are fewer than 3. O(N log N): with m the mask of what is there, sum x y, sum x, sum x^2, … over
    the pairs of lag k are correlations of x m, x^2 m and m with y m, y^2 m and m.
    """
    mx, my = np.isfinite(x), np.isfinite(y)
    x, y = _centred(x, mx), _centred(y, my)
    of_x, of_y = _Spectra.of(x, len(x), lags, first=True), _Spectra.of(y, len(y), lags, first=False)
    if mx.all() and my.all():
        n = np.maximum(len(x) - np.abs(np.arange(-lags, lags + 1.0)), 0)
        sum_x, sum_xx = _of_overlap(x, lags), _of_overlap(x * x, lags)
        sum_y, sum_yy = _of_overlap(y, lags)[::-1], _of_overlap(y * y, lags)[::-1]
    else:
        there_x = _Spectra.of(mx.astype(np.float64), len(x), lags, first=True)
        there_y = _Spectra.of(my.astype(np.float64), len(x), lags, first=False)
        n = np.rint(there_x.products(there_y))
        sum_x, sum_y = of_x.products(there_y), there_x.products(of_y)
        sum_xx = _Spectra.of(x * x, len(x), lags, first=True).products(there_y)
        sum_yy = there_x.products(_Spectra.of(y * y, len(x), lags, first=False))
    with np.errstate(divide="ignore", invalid="ignore"):
        sxx, syy = sum_xx - sum_x**2 / n, sum_yy - sum_y**2 / n
        r = (of_x.products(of_y) - sum_x * sum_y / n) / np.sqrt(sxx * syy)
    # what FFTs leave of a zero is about 1e-16 of the largest sum; n 1e-12 of the whole is far above it
    constant = (sxx <= 1e-12 * (x @ x)) | (syy <= 1e-12 * (y @ y)) | (n < 3)
    return np.where(constant, np.nan, np.clip(r, -1, 1)), n.astype(np.int64)


def autocorrelation(x: Floats, lags: int) -> tuple[Floats, Floats]:
    """r(k) for k = 0 … lags around the mean of the whole, and the pairs that each is of: (lags + 1,) each. r(k) = (mean
    of x[t] x[t + k] over the pairs that are there) / (mean of x[t]^2), in -1 … 1; 0 where none is there."""
    there = np.isfinite(x)
    x = _centred(x, there)
    products = _own(x, lags)
    n = len(x) - np.arange(lags + 1.0) if there.all() else np.rint(_own(there.astype(np.float64), lags))
    if not products[0] > 0:
        return np.zeros(lags + 1), n
    mean = products / np.maximum(n, 1)
    return np.where(n > 0, np.clip(mean / mean[0], -1, 1), 0.0), n


def n_effective(x: Floats, both: NDArray[np.bool_], ry: Floats) -> float:
    """Independent pairs that n autocorrelated ones are worth: n / (1 + 2 sum_k (n_k / n) r_x(k) r_y(k)), 2 … n.

    `both`: where either series has a value. `ry`: y's autocorrelations from lag 0 on, up to n/5 as a rule, as far as
    they can be estimated. n_k: how often two pairs lie k cells apart (n - k without holes). It knows no trend: two
    straight lines are worth some five pairs, and not none.
    Source: Pyper & Peterman 1998, "Comparison of methods to account for autocorrelation in correlation analyses of
    fish data", equation 1, after Bartlett 1946.
    """
    rx, apart = autocorrelation(x if both.all() else np.where(both, x, np.nan), len(ry) - 1)
    n = apart[0]
    overlap = float((apart[1:] / n) @ (rx[1:] * ry[1:]))
    return float(min(n, max(2.0, n / max(1 + 2 * overlap, 1 / n))))


@dataclass(frozen=True, slots=True)
class _Spectra:
    """A series in blocks, transformed, for sums of products at lags -before … after. Blocks some times as long as the
    lags, since a transform that fits the cache is several times faster than one long one. The first series' blocks are
    its own values, the second's reach over their neighbours by the lags."""

    blocks: NDArray[np.complex128]
    size: int
    lags: int

    @classmethod
    def of(cls, x: Floats, n: int, after: int, *, first: bool, before: int | None = None) -> _Spectra:
        before = after if before is None else before
        size = fft.next_fast_len(min(max(n, 1), max(8192, 4 * after)) + before + after, real=True)
        own = size - before - after
        count = -(-n // own)
        if first:
            laid = np.pad(x, (0, count * own - n)).reshape(count, own)
        else:
            padded = np.pad(x, (before, count * own - n + after))
            laid = np.lib.stride_tricks.sliding_window_view(padded, own + before + after)[::own]
        return cls(fft.rfft(laid, size, axis=1), size, before + after + 1)

    def products(self, second: _Spectra) -> Floats:
        summed = np.einsum("bf,bf->f", self.blocks.conj(), second.blocks)
        found: Floats = fft.irfft(summed, self.size)[: self.lags]
        return found


def _of_overlap(x: Floats, lags: int) -> Floats:
    """sum of x[t] over the t that have a partner at t + k, for k = -lags … lags, where nothing is missing."""
    lags_there = min(lags, len(x))
    first, last = np.cumsum(x[:lags_there]), np.cumsum(x[::-1][:lags_there])
    whole = np.full(lags - lags_there, x.sum())
    left: Floats = x.sum() - np.concatenate((whole, first[::-1], [0.0], last, whole))
    return left


def _own(x: Floats, lags: int) -> Floats:
    if 8 * lags < len(x):
        first = _Spectra.of(x, len(x), lags, first=True, before=0)
        return first.products(_Spectra.of(x, len(x), lags, first=False, before=0))
    size = fft.next_fast_len(max(1, len(x) + lags), real=True)
    spectrum = fft.rfft(x, size)
    found: Floats = fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: lags + 1]
    return found


def _centred(x: Floats, there: NDArray[np.bool_]) -> Floats:
    if not there.any():
        return np.zeros(len(x))
    complete = there.all()
    centred: Floats = x - (x.mean() if complete else x[there].mean())
    if not complete:
        centred[~there] = 0.0
    size = float(np.sqrt(centred @ centred / there.sum()))
    if size > 0:
        centred /= size
    return centred


_BLOCK_SAMPLES = 64  # Samples that share one drift and one scale: longer than a spike, shorter than an LR schedule
_MEMORY = 0.9  # Of the burst's size before it, what each step keeps: a burst is one event, however many steps it lasts
# Robust deviations beyond which a change counts as no larger: two outliers that meet are one coincidence, and with some
# 400 lags to search they nearly always meet at one.
_REACH = 4.0


def prewhitened(x: Floats) -> Floats:
    """What the series' own past does not tell, in its own robust deviations; nan where x or its predecessor is.

    1. differences of neighbours, which take out a trend and the wandering of a sum;
    2. around their local median, over their local median absolute deviation, drawn in to +-4: noise that shrinks in
       both series as training goes on makes chance coefficients larger than 1/sqrt(n);
    3. the residuals of an autoregression on its own past. Where that past has a hole, its mean stands in.

    Source: Haugh 1976, "Checking the independence of two covariance-stationary time series: a univariate residual
    cross-correlation approach"; differencing as in Box & Jenkins 1970, chapter 11; drawing in as in Huber 1964.
    """
    changes = np.diff(x, prepend=np.nan)
    there = np.isfinite(changes)
    if there.sum() < 3:
        return np.full(len(x), np.nan)
    news = np.zeros(len(x))
    news[there] = _standardised(changes[there])
    news[there] -= news[there].mean()
    filtered = np.convolve(news, np.concatenate(([1.0], -autoregression(np.where(there, news, np.nan)))))[: len(x)]
    found: Floats = np.where(there, filtered, np.nan)
    return found


def autoregression(x: Floats) -> Floats:
    """phi of x[t] = sum_k phi[k - 1] x[t - k] + news: (p,); holes are nan, and p is 0 where nothing is gained.
    Yule-Walker, solved by Levinson's recursion; the order up to 10 log10(n) that has the smallest AIC, n log(variance)
    + 2 p. Source: Brockwell & Davis 1991, "Time series: theory and methods", 8.2 and 9.3."""
    n = int(np.isfinite(x).sum())
    longest = min(int(10 * math.log10(max(n, 1))), n // 10)
    if longest < 1:
        return np.zeros(0)
    r, apart = autocorrelation(x, longest)
    r = r * apart / apart[0]  # the zero-filled estimate, which always is some stationary process's
    phi = best = np.zeros(0)
    variance, lowest = 1.0, 0.0
    if r[0] <= 0:
        return best
    for p in range(1, longest + 1):
        reflection = (r[p] - phi @ r[p - 1 : 0 : -1]) / variance
        phi = np.concatenate((phi - reflection * phi[::-1], [reflection]))
        variance *= 1 - reflection**2
        if variance <= 1e-12:  # nothing is news any more
            return phi
        aic = n * math.log(variance) + 2 * p
        if aic < lowest:
            lowest, best = aic, phi
    return best


def _standardised(changes: Floats) -> Floats:
    """Around the local median over the local robust deviation, both linear between the middles of blocks; in +-4."""
    n = len(changes)
    blocks = max(1, n // _BLOCK_SAMPLES)
    size = n // blocks
    parts = changes[: blocks * size].reshape(blocks, size)
    drift = np.median(parts, axis=1)
    scale = MAD_TO_SIGMA * np.median(np.abs(parts - drift[:, None]), axis=1)
    whole = float(np.sqrt(np.mean(changes**2)))
    if whole == 0:
        return np.zeros(n)
    middles, places = (np.arange(blocks) + 0.5) * size - 0.5, np.arange(n)
    around = changes - np.interp(places, middles, drift)
    # a series that mostly stands still (a loss scale) has no robust deviation: any change of it is +-4
    deviation = np.maximum(np.interp(places, middles, np.maximum(scale, 1e-6 * whole)), _just_before(np.abs(around)))
    found: Floats = np.clip(around / deviation, -_REACH, _REACH)
    return found


def _just_before(sizes: Floats) -> Floats:
    """The deviation that the last few changes had, an exponentially weighted mean; for normal noise, times 1.2533."""
    weights = _MEMORY ** np.arange(32)
    before = np.concatenate(([0.0], sizes[:-1]))
    found: Floats = 1.2533 * np.convolve(before, weights / weights.sum())[: len(sizes)]
    return found
