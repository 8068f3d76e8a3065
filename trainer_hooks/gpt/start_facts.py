"""What the reference trainer reports of its start, beside where it comes from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sentinel.vocabulary.overrides import Free, Overrides, TrainingSettings
from trainer_hooks.gpt.checkpoint import Progress
from trainer_hooks.gpt.data_path import DataPath
from trainer_hooks.gpt.schedules import Schedules
from trainer_hooks.restart import decision_facts


def start_facts(
    settings: argparse.Namespace,
    progress: Progress,
    overrides: Overrides | None,
    *,
    schedules: Schedules,
    data: DataPath,
    full_seqlen: int,
) -> dict[str, Any]:
    """Fields of RunStarted, before the first step."""
    standing, first = overrides.standing if overrides else TrainingSettings(), progress.step + 1
    return {
        "parent_attempt": progress.attempt,
        **decision_facts(overrides, progress),
        **data.order.facts(progress.consumed_samples),
        "free": (standing.free or Free()).to_json(),
        "qk_clip": standing.qk_clip or 0.0,
        "lr_factor_of": standing.lr_factor_of or {},
        "consumed_tokens": progress.consumed_tokens,
        "effective_tokens": data.effective_tokens,
        "lr": schedules.lr.lr(step=first, consumed_tokens=data.effective_tokens),
        "lr_schedule": schedules.lr.to_json(),
        "seqlen": data.warmup.schedule.seqlen(first),
        "seqlen_schedule": schedules.seqlen.to_json(),
        "seqlen_shortening": schedules.shorten,
        "batch_size_schedule": schedules.batch_size.to_json(),
        "random_ltd_schedule": schedules.random_ltd.to_json(),
        "curriculum_schedule": schedules.curriculum.to_json() if schedules.curriculum else {},
        "full_seqlen": full_seqlen,
        "total_steps": settings.steps,
        "total_tokens": settings.tokens,
        "checkpoint_interval_steps": settings.save_interval or None,
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(settings).items() if k != "data"},
    }
