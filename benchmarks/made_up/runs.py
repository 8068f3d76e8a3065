"""Runs that never were: a loss that falls as a power of the step, its noise, and its spikes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["CURVES", "SIGNALS", "Columns", "columns"]

AT_A_TIME = 100_000
WARMUP_STEPS = 3000

Columns = dict[str, NDArray[np.float64] | NDArray[np.int64]]

CURVES = ("healthy", "hard")
"""healthy: normal noise, a spike each 40,000 steps. hard: noise with heavy tails (Student's t, 2.5 degrees of freedom),
gradients with heavier ones, a spike each 1,000 steps."""

SIGNALS = ("few", "all")
"""few: loss, grad_norm, lr. all: the others that the judge reads, too."""

_SPIKES_EVERY = {"healthy": 40_000, "hard": 1_000}
_OTHERS = ("adam_variance_l1", "adam_variance_max", "update_norm", "loss_spread")


def columns(n: int, signals: str = "few", curve: str = "healthy", seed: int = 0) -> Iterator[Columns]:
    """The run's columns, a stretch at a time; `step` among them."""
    rng = np.random.default_rng(seed)
    every = _SPIKES_EVERY[curve]
    for first in range(0, n, AT_A_TIME):
        steps = np.arange(first + 1, min(first + AT_A_TIME, n) + 1)
        count = len(steps)
        noise = rng.standard_t(2.5, count) if curve == "hard" else rng.standard_normal(count)
        since_spike = steps % every
        spike = np.where((steps > every) & (since_spike < 60), np.exp(-since_spike / 15.0), 0.0)
        width = 0.8 if curve == "hard" else 0.3
        stretch: Columns = {
            "step": steps,
            "loss": 1.7 + 9.0 * steps**-0.22 + noise * (0.02 + 0.2 * steps**-0.4) + 2.5 * spike,
            "grad_norm": rng.lognormal(-1.0, width, count) * (1 + 20 * spike),
            "lr": 6e-5 * np.minimum(1.0, steps / WARMUP_STEPS),
        }
        if signals == "all":
            stretch |= {name: rng.lognormal(-1.0, 0.3, count) * (1 + 5 * spike) for name in _OTHERS}
            stretch |= {
                "loss_scale": np.full(count, 65536.0),
                "seqlen": np.full(count, 2048),
                "global_batch_samples": np.full(count, 2048),
            }
        yield stretch
