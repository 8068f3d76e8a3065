"""Megatron's LR warmup and DeepSpeed's curriculum as formulas: what they do after a restart, and what to ask for."""

from __future__ import annotations

import math
from typing import Any

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import SeqlenSchedule, staircase

__all__ = ["discrete_curriculum", "lr_at", "warmup_for"]


def lr_at(consumed: int, *, peak: float, warmup: int) -> float:
    """Megatron's LR during its warmup: peak x consumed / warmup, from the run's beginning and not from the anchor.

    Source: `get_lr` of megatron/learning_rates.py (BigScience) and optimizer_param_scheduler.py (Microsoft).
    """
    return peak if consumed >= warmup else peak * consumed / warmup


def warmup_for(wanted_lr: float, *, peak: float, consumed: int, batch: int = 1) -> int:
    """The warmup, in the unit of `consumed`, that gives this LR at the anchor, or less by under one batch.

    It ends a whole number of batches after the anchor: the scheduler has to meet its end exactly where the decay
    counts tokens, or Microsoft's has no `lr_warmup_tokens` to decay from, and dies.
    """
    if not 0 < wanted_lr <= peak:
        raise ConfigError(f"the LR at the anchor should lie above 0 and not above the peak {peak:g}: {wanted_lr:g}")
    if consumed <= 0:
        raise ConfigError("at the beginning of a run the LR is 0 with every warmup: there is none to solve for")
    exact = peak * consumed / wanted_lr
    batches = math.ceil((exact - consumed) / batch - 1e-9)
    return consumed + max(batches, 0) * batch


def discrete_curriculum(schedule: SeqlenSchedule) -> dict[str, Any]:
    """DeepSpeed's `curriculum_learning` block with the schedule as a staircase of absolute steps.

    `fixed_linear` would count from step 0, and be over before a restart has begun.
    """
    if not schedule.warms_up:
        raise ConfigError(f"a sequence length {schedule} is no warmup")
    stages = staircase(schedule)
    lengths, last_steps = list(stages.difficulties), [schedule.anchor_step + step for step in stages.max_steps]
    if len(lengths) == 1:  # one step from the start to the full length
        lengths, last_steps = [schedule.start, schedule.full], [schedule.anchor_step]
    return {
        "enabled": True,
        "curriculum_type": "seqlen",
        "min_difficulty": lengths[0],
        "max_difficulty": schedule.full,
        "schedule_type": "fixed_discrete",
        "schedule_config": {"difficulty": lengths, "max_step": last_steps},
    }
