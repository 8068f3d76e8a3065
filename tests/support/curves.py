"""Loss curves as a judge takes them, sample by sample."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from sentinel.judge.verdict import Context
from sentinel.vocabulary.sample import Sample

ALIVE = Context(now_unix_s=1000.0, job_alive=True, attempt=1, last_sample_unix_s=999.0)


def sample(step: int, loss: float, **readings: float | bool | None) -> Sample:
    return Sample(attempt=1, global_step=step, time_unix_s=float(step), loss=loss, **readings)  # type: ignore[arg-type]


def curve(shape: Callable[[int], float], steps: int, noise: float = 0.01, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    return [sample(step, shape(step) * (1 + rng.gauss(0, noise))) for step in range(1, steps + 1)]


def healthy(step: int) -> float:
    return 2.0 + 3.0 * math.exp(-step / 200)


def spike(step: int) -> float:
    """tr11-176B's: from 2.1 to 5.1 within three steps, back after 30."""
    height = {0: 0.2, 1: 1.0, 2: 2.0, 3: 3.0}.get(step - 500, 3.0 * math.exp(-(step - 503) / 7))
    return healthy(step) + (height if 500 <= step < 533 else 0.0)


def tr8(step: int) -> float:
    """6.4, then 14, then 7 for good, scaled down."""
    return healthy(step) if step < 500 else healthy(500) * (2.2 if step < 540 else 1.15)
