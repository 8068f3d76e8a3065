"""The schedules that Megatron's own schedulers run with, in sentinel's form: LR and sequence length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from sentinel.vocabulary.pacing.deepspeed import curriculum_learning


def lr_schedule(scheduler: Any, args: Any) -> dict[str, Any] | None:
    """The LR by the scheduler's own numbers, after a checkpoint has set them or was overridden; in the unit of the
    options, from the run's beginning. None for a scheduler that is not Megatron's.

    Megatron's schedulers count samples, whatever the options count. A decay that is no cosine is left out.
    Source: AnnealingLR (BigScience), OptimizerParamScheduler (Microsoft, NVIDIA).
    """
    numbers = getattr(scheduler, "__dict__", {})
    if not {"max_lr", "min_lr"} <= set(numbers):
        return None
    prefix = "" if "warmup_steps" in numbers else "lr_"
    warmup, end, style, decay_tokens = (
        numbers[f"{prefix}{name}"] for name in ("warmup_steps", "decay_steps", "decay_style", "decay_tokens")
    )
    # The scheduler's own lr_warmup_tokens is also where a warmup in samples has ended.
    tokens = getattr(args, "lr_warmup_tokens", None) if prefix else None
    by_samples = getattr(args, "train_samples", None) is not None
    each = 1 if by_samples else args.global_batch_size
    length = round(warmup / each) if tokens is None else int(numbers["lr_warmup_tokens"])
    lr = LrSchedule(
        peak=numbers["max_lr"],
        minimum=min(numbers["min_lr"], numbers["max_lr"]),
        warmup=length,
        decay_end=0,
        unit="tokens" if tokens is not None else "samples" if by_samples else "steps",
    )
    if style == "cosine" and (decay_tokens is None) == (tokens is None):
        ends = round(end / each) if decay_tokens is None else int(decay_tokens)
        lr = replace(lr, decay_start=length, decay_end=ends)
    return lr.to_json()


def seqlen_schedule(args: Any) -> dict[str, Any] | None:
    """The sequence length's, from the JSON that the engine was made with: one that does not warm up where the JSON
    switches no warmup on. None where `data_efficiency` or random-LTD shortens samples, or the JSON is not known."""
    config = getattr(args, "deepspeed_config_dict", None) or getattr(args, "deepspeed_configuration", None)
    others = ("data_efficiency_curriculum_learning", "random_ltd")
    if not isinstance(config, Mapping) or any(getattr(args, name, False) for name in others):
        return None
    full = args.seq_length
    return (curriculum_learning(config) or FixedLinear(start=full, full=full, total_steps=0)).to_json()
