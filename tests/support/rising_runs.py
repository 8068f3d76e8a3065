"""A healthy run of 1,200 steps, with what a test puts in place of its readings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.readings import Readings
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds

STEPS = 1200
RISE = np.clip((np.arange(STEPS) - 600) / 300, 0, 1)  # from step 601 on, over 300 steps


def noisy(level: NDArray[np.float64] | float, noise: float, seed: int) -> NDArray[np.float64]:
    return level * (1 + noise * np.random.default_rng(seed).standard_normal(STEPS))


def judged(planned: tuple[int, ...] = (), **columns: NDArray[np.float64]) -> Series:
    healthy = {
        "loss": noisy(2.0, 0.01, 1),
        "grad_norm": noisy(1.0, 0.1, 2),
        "adam_variance_max": noisy(0.1, 0.02, 3),
        "update_norm": noisy(0.2, 0.02, 4),
        "lr": np.full(STEPS, 1e-3),
    }
    series = Series(Thresholds(), planned=planned)
    series.push_readings(Readings(attempt=1, steps=np.arange(1, STEPS + 1), columns=healthy | columns))
    return series
