"""Megatron's options as schedules, and a schedule as DeepSpeed's curriculum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sentinel.jobscript.derived import track_of
from sentinel.jobscript.facts import Facts
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import (
    LrSchedule,
    Position,
    SeqlenSchedule,
    staircase,
)


def lr_schedule(facts: Facts, *, style: str | None) -> LrSchedule | None:
    """Megatron's LR as its options ask for it, in the unit that they count in and from the run's beginning.

    peak x consumed / warmup, whatever the start resumes from. `style` is --lr-decay-style; a decay that is no cosine is
    left out. None where the options do not show the warmup.

    Source: `get_lr` of megatron/learning_rates.py (BigScience) and optimizer_param_scheduler.py (Microsoft).
    """
    unit, warmup = _warmup(facts)
    if facts.lr is None or warmup is None:
        return None
    lr = LrSchedule(peak=facts.lr, warmup=warmup, decay_end=0, minimum=min(facts.min_lr or 0.0, facts.lr), unit=unit)
    if style != "cosine":
        return lr
    if facts.lr_decay_tokens is None:
        counted, end = run_unit(facts), _decay(facts)
        start = warmup if counted == unit else None
    else:
        counted, end = "tokens", facts.lr_decay_tokens
        start = warmup if unit == "tokens" else warmup_end_tokens(facts, lr)
    if end is None or start is None:
        return lr
    return replace(lr, decay_unit=None if counted == unit else counted, decay_start=start, decay_end=end)


def run_unit(facts: Facts) -> str:
    """Whether the run, its LR warmup and its decay count samples or steps."""
    return "samples" if facts.train_samples is not None else "steps"


def _warmup(facts: Facts) -> tuple[str, int | None]:
    if facts.lr_warmup_tokens is not None:
        return "tokens", facts.lr_warmup_tokens
    unit = run_unit(facts)
    if facts.lr_warmup_fraction:
        decay = _decay(facts)
        return unit, None if decay is None else round(facts.lr_warmup_fraction * decay)
    return unit, facts.lr_warmup_samples if unit == "samples" else facts.lr_warmup_iters


def _decay(facts: Facts) -> int | None:
    """The samples or steps of the decay; those of the run where it is not given."""
    if run_unit(facts) == "samples":
        return facts.lr_decay_samples or facts.train_samples
    return facts.lr_decay_iters or facts.train_iters


def decay_tokens(facts: Facts) -> int | None:
    """What --lr-decay-tokens has to be for the decay that the options ask for, at the full length."""
    decay, full, batch = _decay(facts), facts.seq_length, facts.global_batch_size
    if facts.lr_decay_tokens is not None:
        return facts.lr_decay_tokens
    if decay is None or full is None or batch is None:
        return None
    return decay * full * (1 if run_unit(facts) == "samples" else batch)


def warmup_end_tokens(facts: Facts, lr: LrSchedule) -> int | None:
    """Tokens that are consumed where the warmup of the options ends; None where that can't be counted."""
    track = track_of(facts)
    if lr.unit == "tokens" or track is None:
        return lr.warmup if lr.unit == "tokens" else None
    if lr.unit == "samples":
        return track.tokens_at(Position(), lr.warmup)
    return track.reach(Position(), step=lr.warmup).tokens


def discrete_curriculum(schedule: SeqlenSchedule) -> dict[str, Any]:
    """DeepSpeed's `curriculum_learning` block with the schedule as a staircase of absolute steps.

    `fixed_linear` would count from step 0, and be over before a restart has begun.
    """
    if not schedule.warms_up:
        raise ConfigError(f"a sequence length {schedule} does not warm up")
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
