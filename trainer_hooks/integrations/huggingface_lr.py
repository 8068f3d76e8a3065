"""The learning rate under Hugging Face's Trainer: what its scheduler makes of it as a formula, and a decided one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from sentinel.vocabulary.pacing import LrSchedule


def schedule_of(trainer: Any, engine: Any, total_steps: int) -> LrSchedule | None:
    """Trainer's own schedule, or DeepSpeed's, as a formula: constant, linear or cosine, with a linear warmup and a
    minimum or without. None for any other. It is held against the scheduler at some 70 steps."""
    if total_steps < 1:
        return None
    if engine.lr_scheduler is not None:
        return _of_deepspeed(engine.lr_scheduler)
    scheduler = trainer.lr_scheduler
    if not (functions := getattr(scheduler, "lr_lambdas", None)):
        return None
    peak, warmup = float(scheduler.base_lrs[0]), int(trainer.args.get_warmup_steps(total_steps))
    # Trainer's first update is taken with the LR of step 0
    return _found(lambda step: peak * float(functions[0](step - 1)), peak, warmup, total_steps, first=1)


def _of_deepspeed(scheduler: Any) -> LrSchedule | None:
    """WarmupLR, WarmupDecayLR and WarmupCosineLR; their warmup along a logarithm, the default, is no such formula."""
    bases = getattr(scheduler, "max_lrs", None) or getattr(scheduler, "org_lrs", None)
    if not bases or not hasattr(scheduler, "warmup_num_steps"):
        return None
    twin = copy.copy(scheduler)

    def own(step: int) -> float:  # the first two updates are taken with the LR of step 0
        twin.last_batch_iteration = max(step - 2, 0)
        return float(twin.get_lr()[0])

    total = int(getattr(scheduler, "total_num_steps", 0)) or 2 * int(scheduler.warmup_num_steps)
    return _found(own, float(bases[0]), int(scheduler.warmup_num_steps), total, first=2)


def _found(own: Callable[[int], float], peak: float, warmup: int, total: int, *, first: int) -> LrSchedule | None:
    """The formula that gives the scheduler's own LR of every step. `first`: its step 0 is the update of that number."""
    steps = {1, 2, *(warmup + n for n in range(4)), *(1 + total * k // 64 for k in range(64)), total}
    ways = [(0, 0, None), (warmup + first, total + first, "linear"), (warmup + first, total + first, None)]
    ways += [(warmup + first - 1, total + first - 1, None)]  # WarmupCosineLR is a step ahead once it decays
    for start, end, shape in ways:
        made = LrSchedule(
            peak=peak,
            warmup=warmup,
            anchor=first if warmup else 0,
            decay_start=start,
            decay_end=end,
            minimum=min(max(own(end), 0.0), peak) if end else 0.0,
            decay_shape=shape,
        )
        if all(math.isclose(own(n), made.lr(step=n), rel_tol=1e-9, abs_tol=1e-12 * peak) for n in steps if n > 0):
            return made
    return None


class DecidedLr:
    """Sets a formula's LR before each update. The scheduler goes on uncounted-for, with the LR that it had set."""

    def __init__(self, trainer: Any, engine: Any, schedule: LrSchedule) -> None:
        self.schedule = schedule
        self._trainer, self._engine = trainer, engine
        self._lr = math.nan
        self._own: list[float] | None = None
        bases = [float(group.get("initial_lr", group["lr"])) for group in engine.optimizer.param_groups]
        self._ratios = [base / bases[0] if bases[0] else 1.0 for base in bases]
        trainer._get_learning_rate = lambda: self._lr  # what Trainer logs

    def begin(self, *, step: int, consumed_samples: int, consumed_tokens: int) -> None:
        """Before the step's first micro-batch: with DeepSpeed the update is made inside its last backward."""
        groups = self._engine.optimizer.param_groups
        self._lr = self.schedule.lr(step=step, consumed_tokens=consumed_tokens, consumed_samples=consumed_samples)
        self._own = [group["lr"] for group in groups]
        for group, ratio in zip(groups, self._ratios, strict=True):
            group["lr"] = self._lr * ratio

    def made(self) -> None:
        """After the update, before Trainer's scheduler steps: one that goes by the group's LR finds its own there.
        DeepSpeed's own has stepped already."""
        if self._own is not None and self._engine.lr_scheduler is None:
            for group, lr in zip(self._engine.optimizer.param_groups, self._own, strict=True):
                group["lr"] = lr
        self._own = None

    def close(self) -> None:
        """Trainer logs its scheduler's LR again."""
        self._trainer.__dict__.pop("_get_learning_rate", None)
