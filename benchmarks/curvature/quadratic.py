"""Adam on 0.5 k x^2, many draws at once: whether the ratio passes 1 where the spike begins.

A spike begins at the first step of a stretch in which each step changes the sign of x and makes it larger, for eight
steps and tenfold: what is seen of x alone. Draws: k in 0.01 to 100, LR 0.001 to 0.1, 1 - beta2 in 0.01 to 0.1 (all
log-uniform), x in 0.5 to 2 at the start; eps 1e-8; float64, because x falls to 1e-130 before the spike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.curvature.ratio import Adam, along_update, curved

__all__ = ["agreement", "begins"]

_LEAST_STEPS, _LEAST_GROWTH = 8, 10.0


def agreement(beta1: float, draws: int = 100, steps: int = 6000, seed: int = 0) -> dict[str, Any]:
    """Of `draws` with a spike: the differences of the step at which the ratio passes 1 and that of the spike."""
    x, ratios = _trained(beta1, draws, steps, seed)
    seen = [begins(column) for column in x.T.tolist()]
    passed = [next((at for at, one in enumerate(column, 1) if one > 1), None) for column in ratios.T.tolist()]
    off = [there - at for there, at in zip(passed, seen, strict=True) if there is not None and at is not None]
    return {
        "beta1": beta1,
        "draws": draws,
        "with_spike": sum(at is not None for at in seen),
        "predicted": sum(at is not None for at in passed),
        "within_2": sum(abs(one) <= 2 for one in off),
        "within_10": sum(abs(one) <= 10 for one in off),
        "median_steps_off": statistics.median(off) if off else math.nan,
    }


def begins(x: Sequence[float]) -> int | None:
    """The step (from 1) at which the first spike of x begins; None where there is none."""
    start = 0
    for at in range(1, len(x)):
        if (x[at] > 0) == (x[at - 1] > 0) or abs(x[at]) <= abs(x[at - 1]):
            start = at
        elif at - start >= _LEAST_STEPS and abs(x[at]) > _LEAST_GROWTH * abs(x[start]):
            return start + 1
    return None


def _trained(beta1: float, draws: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """(steps, draws): x before each update, and the ratio as of that update."""
    drawn = torch.Generator().manual_seed(seed)

    def within(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand((draws, 1), generator=drawn, dtype=torch.float64)

    k, lr, x = 10 ** within(-2, 2), 10 ** within(-3, -1), within(0.5, 2)
    beta2 = 1 - 10 ** within(-2, -1)
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    first, eps = torch.full_like(x, beta1), torch.full_like(x, 1e-8)
    seen, ratios = [], []
    for step in range(1, steps + 1):
        g = k * x
        m, v = first * m + (1 - first) * g, beta2 * v + (1 - beta2) * g * g
        adam = Adam(m=m, v=v, updates=step, lr=lr, beta1=first, beta2=beta2, eps=eps)
        direction = m.sign()  # all that a direction of one dimension has: m itself underflows when it is squared
        ratios.append(along_update(adam, direction, curved(lambda at: k * at, x, g, direction)))
        seen.append(x[:, 0])
        x = x - lr * m / (1 - first**step) / adam.root
    return torch.stack(seen), torch.stack(ratios)
