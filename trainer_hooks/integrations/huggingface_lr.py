"""The learning rate under Hugging Face's Trainer: what its scheduler makes of it as a formula, and a decided one."""

from __future__ import annotations

import math
from typing import Any

from sentinel.vocabulary.pacing import LrSchedule

__all__ = ["DecidedLr", "schedule_of"]


def schedule_of(trainer: Any, engine: Any, total_steps: int) -> LrSchedule | None:
    """Trainer's own schedule as a formula: constant, linear or cosine, with a warmup and a minimum or without. None for
    any other, and for DeepSpeed's own. It is held against the scheduler at some 70 steps."""
    scheduler = trainer.lr_scheduler
    functions = getattr(scheduler, "lr_lambdas", None)
    if engine.lr_scheduler is not None or not functions or total_steps < 1:
        return None
    peak, warmup = float(scheduler.base_lrs[0]), int(trainer.args.get_warmup_steps(total_steps))

    def own(step: int) -> float:  # Trainer's first update is taken with the LR of step 0
        return peak * float(functions[0](step - 1))

    steps = {1, 2, warmup, warmup + 1, warmup + 2, *(1 + total_steps * k // 64 for k in range(64)), total_steps}
    for end, shape in ((0, None), (total_steps + 1, "linear"), (total_steps + 1, None)):
        made = LrSchedule(
            peak=peak,
            warmup=warmup,
            anchor=1 if warmup else 0,
            decay_start=warmup + 1 if end else 0,
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
