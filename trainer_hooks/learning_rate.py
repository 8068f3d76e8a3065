"""The learning rate of a training: a scheduler's as a formula, and a decided one in its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sentinel.vocabulary.pacing import LrSchedule

__all__ = ["DecidedLr", "formula_of"]


def formula_of(
    own: Callable[[int], float], peak: float, warmup: int, total: int, *, first: int = 1
) -> LrSchedule | None:
    """The formula that gives the scheduler's own LR of each update, by its number from 1 on: constant, linear or
    cosine, with a linear warmup and a minimum or without. None for any other; it is held against it at some 70
    steps. `first`: the update of that number has the LR of the scheduler's step 0."""
    steps = {1, 2, *(warmup + n for n in range(4)), *(1 + total * k // 64 for k in range(64)), total}
    ways = [(0, 0, None), (warmup + first, total + first, "linear"), (warmup + first, total + first, None)]
    ways += [(warmup + first - 1, total + first - 1, None)]  # WarmupCosineLR is a step ahead once it decays
    warmups = [(first if warmup else 0, warmup), *([(0, warmup + 1)] if warmup else [])]  # nanoGPT's (it + 1) / (W + 1)
    for (start, end, shape), (anchor, length) in ((way, ramp) for way in ways for ramp in warmups):
        made = LrSchedule(
            peak=peak,
            warmup=length,
            anchor=anchor,
            decay_start=start,
            decay_end=end,
            minimum=min(max(own(end), 0.0), peak) if end else 0.0,
            decay_shape=shape,
        )
        if all(math.isclose(own(n), made.lr(step=n), rel_tol=1e-9, abs_tol=1e-12 * peak) for n in steps if n > 0):
            return made
    return None


class DecidedLr:
    """Sets a formula's LR before an update; parameter groups keep their ratios. The scheduler goes on uncounted-for,
    with the LR that it had set, which it gets back after the update."""

    def __init__(self, optimizer: Any, schedule: LrSchedule) -> None:
        self.schedule = schedule
        self.lr = math.nan  # Of the update under way
        self._optimizer = optimizer
        self._own: list[float] | None = None
        bases = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        self._ratios = [base / bases[0] if bases[0] else 1.0 for base in bases]

    def begin(self, *, step: int, consumed_samples: int = 0, consumed_tokens: int = 0) -> None:
        """Before the update that makes `step`; the counts are those before it."""
        groups = self._optimizer.param_groups
        self.lr = self.schedule.lr(step=step, consumed_tokens=consumed_tokens, consumed_samples=consumed_samples)
        if self._own is None:
            self._own = [group["lr"] for group in groups]
        for group, ratio in zip(groups, self._ratios, strict=True):
            group["lr"] = self.lr * ratio

    def made(self) -> None:
        """After the update."""
        if self._own is not None:
            for group, lr in zip(self._optimizer.param_groups, self._own, strict=True):
                group["lr"] = lr
        self._own = None

    def keep(self) -> None:
        """After an update whose scheduler has stepped within it: its LR is in the groups already."""
        self._own = None
