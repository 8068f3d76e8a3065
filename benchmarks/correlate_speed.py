"""How long two signals against the loss ratio take, at all lags, beside a loop over the lags with scipy's pearsonr.

The loop makes as many coefficients of as long series, and neither the whitening nor the effective sample sizes. It is
timed at a few lags of one signal and multiplied up; `naive_lags_timed` says how many. Seconds are the wall clock's;
`cpu_s` is what a busy machine does not change.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sentinel.judge.analysis.correlation.table import LAGS, correlations

SIGNALS = ("adam_variance_l1", "adam_variance_max")


def columns(samples: int) -> dict[str, NDArray[np.float64]]:
    """A loss ratio and two variances that wander; nothing of them is related."""
    rng = np.random.default_rng(0)
    wandering = {name: 100 + np.cumsum(rng.standard_normal(samples)) / 100 for name in SIGNALS}
    return {"loss_ratio": 1.05 + rng.standard_normal(samples) / 100} | wandering


def naive_s(table: dict[str, NDArray[np.float64]], lags_timed: int) -> float:
    """Seconds that the loop would take for both signals at all lags."""
    lags = np.linspace(-LAGS, LAGS, lags_timed).astype(int)
    x, y = table[SIGNALS[0]], table["loss_ratio"]
    started = time.perf_counter()
    for lag in lags:
        stats.pearsonr(x[max(0, -lag) : len(x) - max(0, lag)], y[max(0, lag) : len(y) - max(0, -lag)])
    return (time.perf_counter() - started) / lags_timed * (2 * LAGS + 1) * len(SIGNALS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 thousand samples, not a million")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    samples = 100_000 if asked.quick else 1_000_000
    table, steps = columns(samples), np.arange(samples)
    times, cpu_times = [], []
    for _ in range(3):
        started, cpu_started = time.perf_counter(), time.process_time()
        correlations(table, steps)
        times.append(time.perf_counter() - started)
        cpu_times.append(time.process_time() - cpu_started)
    lags_timed = 9
    found = {
        "samples": samples,
        "signals": len(SIGNALS),
        "lags": 2 * LAGS + 1,
        "seconds": min(times),
        "cpu_s": min(cpu_times),
        "naive_s": naive_s(table, lags_timed),
        "naive_lags_timed": lags_timed,
    }
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{samples:,} samples, {len(SIGNALS)} signals, {2 * LAGS + 1} lags each")
    print(f"  sentinel, everything              {found['seconds']:8.2f} s   (best of 3; {found['cpu_s']:.2f} s of CPU)")
    print(f"  a loop of scipy.stats.pearsonr    {found['naive_s']:8.2f} s   (timed at {lags_timed} lags)")


if __name__ == "__main__":
    main()
