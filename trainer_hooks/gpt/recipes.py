"""The papers' GPT-3 recipes as options of the trainer: --recipe slw voc random-ltd, scaled to this run."""

from __future__ import annotations

import argparse

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import CurriculumSchedule, LrSchedule, MetricSchedule, presets
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency
from trainer_hooks.gpt.arguments import shape

__all__ = ["recipe_lr", "recipe_schedules"]


def recipe_schedules(settings: argparse.Namespace) -> tuple[DataEfficiency, CurriculumSchedule | None]:
    """What --recipe switches on. Durations are shares of this run's steps, whatever share of the data these are."""
    names = settings.recipe or ()
    steps, full = _steps(settings), shape(settings).seqlen
    told = DataEfficiency(
        seqlen=presets.gpt_seqlen(full_steps=steps, full_seqlen=full) if "slw" in names else None,
        random_ltd=presets.gpt_random_ltd(full_steps=steps, full_seqlen=full) if "random-ltd" in names else None,
    )
    if "voc" not in names:
        return told, None
    if settings.voc_index is None:
        raise ConfigError("--recipe voc needs --voc-index, the folder that `sentinel-data analyze --metric voc` made")
    paced = MetricSchedule(difficulty=presets.gpt_rarity(full_steps=steps), index=str(settings.voc_index))
    return told, CurriculumSchedule(metrics={"voc": paced})


def recipe_lr(settings: argparse.Namespace) -> LrSchedule:
    """Peak x 1 / data share, decayed over all the tokens of this run down to 1e-6, warmed up by tokens."""
    share = settings.data_share
    tokens = settings.tokens or _steps(settings) * settings.global_batch * shape(settings).seqlen
    return presets.lr(
        peak=settings.lr,
        full_tokens=round(tokens / share),
        warmup_tokens=settings.lr_warmup_tokens or 0,
        data_share=share,
    )


def _steps(settings: argparse.Namespace) -> int:
    """Of this run at the full length and batch; as the papers count, one that is shorter at first has more."""
    if settings.tokens is None:
        return int(settings.steps)
    batch: int = settings.global_batch
    return max(1, round(int(settings.tokens) / (batch * shape(settings).seqlen)))
