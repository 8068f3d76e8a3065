"""A series without its trend, its changes of noise and its memory: what of it comes as news, step by step."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.analysis.correlation.lagged import autocorrelation

# Samples that share one drift and one scale; longer than a spike, shorter than a learning rate's schedule.
_BLOCK_SAMPLES = 64
# How much of the burst's size before it each step keeps: a burst is one event, however many steps it lasts.
_MEMORY = 0.9
# Robust deviations beyond which a change counts as no larger: two outliers that meet are one coincidence, and with some
# 400 lags to search they nearly always meet at one.
_REACH = 4.0
_MAD_TO_SIGMA = 1.4826  # Median absolute deviation to standard deviation, for normal noise: 1 / Phi^-1(3/4)


def prewhitened(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the series' own past does not tell, in its own robust deviations; nan where x or its predecessor is.

    1. differences of neighbours, which take out a trend and the wandering of a sum;
    2. around their local median, over their local median absolute deviation (256 samples each), drawn in to +-4: noise
       that shrinks in both series as training goes on makes chance coefficients larger than 1/sqrt(n);
    3. the residuals of an autoregression on its own past. Where that past has a hole, its mean stands in.

    Each series is whitened by its own filter, so that coefficients at different lags are independent of one another and
    neither series is the cause by assumption. Source: Haugh 1976, "Checking the independence of two
    covariance-stationary time series: a univariate residual cross-correlation approach"; differencing as in Box &
    Jenkins 1970, chapter 11; drawing in as in Huber 1964.
    """
    changes = np.diff(x, prepend=np.nan)
    there = np.isfinite(changes)
    if there.sum() < 3:
        return np.full(len(x), np.nan)
    news = np.zeros(len(x))
    news[there] = _standardised(changes[there])
    news[there] -= news[there].mean()
    filtered = np.convolve(news, np.concatenate(([1.0], -autoregression(np.where(there, news, np.nan)))))[: len(x)]
    found: NDArray[np.float64] = np.where(there, filtered, np.nan)
    return found


def autoregression(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """phi of x[t] = sum_k phi[k - 1] x[t - k] + news: (p,); holes are nan, and p is 0 where nothing is gained.

    Yule-Walker, solved by Levinson's recursion; the order up to 10 log10(n) that has the smallest AIC, n log(variance)
    + 2 p. Source: Brockwell & Davis 1991, "Time series: theory and methods", 8.2 and 9.3.
    """
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


def _standardised(changes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Around the local median over the local robust deviation, both linear between the middles of blocks; in +-4."""
    n = len(changes)
    blocks = max(1, n // _BLOCK_SAMPLES)
    size = n // blocks
    parts = changes[: blocks * size].reshape(blocks, size)
    drift = np.median(parts, axis=1)
    scale = _MAD_TO_SIGMA * np.median(np.abs(parts - drift[:, None]), axis=1)
    whole = float(np.sqrt(np.mean(changes**2)))
    if whole == 0:
        return np.zeros(n)
    middles, places = (np.arange(blocks) + 0.5) * size - 0.5, np.arange(n)
    around = changes - np.interp(places, middles, drift)
    # a series that mostly stands still (a loss scale) has no robust deviation: any change of it is +-4
    deviation = np.maximum(np.interp(places, middles, np.maximum(scale, 1e-6 * whole)), _just_before(np.abs(around)))
    found: NDArray[np.float64] = np.clip(around / deviation, -_REACH, _REACH)
    return found


def _just_before(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The deviation that the last few changes had, an exponentially weighted mean; for normal noise, times 1.2533."""
    weights = _MEMORY ** np.arange(32)
    before = np.concatenate(([0.0], sizes[:-1]))
    found: NDArray[np.float64] = 1.2533 * np.convolve(before, weights / weights.sum())[: len(sizes)]
    return found
