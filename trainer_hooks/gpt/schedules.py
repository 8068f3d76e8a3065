"""What a run follows step by step: as sentinel decided it, else as the DeepSpeed JSON has it, else as the arguments."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import PurePath

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    FixedLinear,
    LrSchedule,
    MetricSchedule,
    Position,
    RandomLtdSchedule,
    SeqlenSchedule,
    Shortening,
    Track,
    presets,
    refuse_beside_slw,
)
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency, IndexedMetric
from sentinel.vocabulary.training_settings import TrainingSettings
from trainer_hooks.gpt.arguments import shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """Of one attempt. What is not warmed up is there too, as a schedule that does not."""

    lr: LrSchedule
    seqlen: SeqlenSchedule
    shorten: Shortening
    batch_size: BatchSizeSchedule
    random_ltd: RandomLtdSchedule
    curriculum: CurriculumSchedule | None  # None draws from all of the data

    @classmethod
    def of(cls, settings: argparse.Namespace, told: DataEfficiency, standing: TrainingSettings) -> Schedules:
        """ConfigError where two of them do not go together, or one is not of this model's length."""
        full = shape(settings).seqlen
        recipe, rarity = recipe_schedules(settings)
        kept, steps = settings.random_ltd or (full, 0)
        ltd = told.random_ltd or recipe.random_ltd or RandomLtdSchedule(start=kept, full=full, total_steps=steps)
        by_default = told.seqlen or recipe.seqlen or _seqlen(settings, full)
        start, increment, samples = settings.rampup_batch_size or (settings.global_batch, 1, 0)
        own = Track(  # the run's schedules as configured: its LR goes by these, whatever sentinel decided since
            full=by_default.full,
            seqlen=by_default,
            batch=BatchSizeSchedule(start=start, full=settings.global_batch, increment=increment, ramp_samples=samples),
            shorten=told.shorten or settings.seqlen_shorten,
            unforeseen="full",
            random_ltd=ltd,
            layers=shape(settings).layers,
        )
        seqlen = standing.seqlen or by_default
        batch_size = standing.batch_size or own.batch
        refuse_beside_slw(seqlen, batch_size)
        if seqlen.full != full:
            raise ConfigError(f"the sequence length warms up to {seqlen.full}, and the model's full length is {full}")
        if batch_size.full != settings.global_batch:
            raise ConfigError(f"the batch warms up to {batch_size.full}, and --global-batch is {settings.global_batch}")
        return cls(
            lr=standing.lr or (recipe_lr(settings) if settings.recipe else _lr(settings, own)),
            seqlen=seqlen,
            shorten=standing.shorten or own.shorten,
            batch_size=batch_size,
            random_ltd=standing.random_ltd or ltd,
            curriculum=_curriculum(settings, told, standing, rarity),
        )


def _seqlen(settings: argparse.Namespace, full: int) -> SeqlenSchedule:
    """Without SLW it is full from the first step."""
    if settings.seqlen_schedule is not None:
        return SeqlenSchedule.from_json({"full": full} | settings.seqlen_schedule)
    steps = settings.seqlen_warmup_steps if settings.seqlen_start else 0
    return FixedLinear(start=min(settings.seqlen_start or full, full), full=full, total_steps=steps)


def _curriculum(
    settings: argparse.Namespace, told: DataEfficiency, standing: TrainingSettings, rarity: CurriculumSchedule | None
) -> CurriculumSchedule | None:
    decided = standing.curriculum
    if decided is None and settings.curriculum is not None:
        decided = CurriculumSchedule.from_json(settings.curriculum)
    if decided is None and told.metrics:
        decided = CurriculumSchedule(metrics={name: _indexed(name, metric) for name, metric in told.metrics.items()})
    decided = decided or rarity
    return decided if decided and decided.metrics else None


def _indexed(name: str, metric: IndexedMetric) -> MetricSchedule:
    """DeepSpeed names the files of an index, which stand together in a folder."""
    path = metric.index_to_sample_path or metric.index_to_metric_path
    if path is None:
        raise ConfigError(f"metric {name!r} has no index_to_sample_path: without an index nothing orders the samples")
    return MetricSchedule(difficulty=metric.difficulty, index=str(PurePath(path).parent))


def _lr(settings: argparse.Namespace, own: Track) -> LrSchedule:
    unit = settings.lr_unit
    decay_unit = settings.lr_decay_unit or unit
    end = settings.steps if decay_unit == "steps" else settings.tokens
    warmup = settings.lr_warmup
    if (tokens := settings.lr_warmup_tokens) is not None and tokens > 0:
        warmup = (
            tokens if unit == "tokens" else replace(own, unforeseen="start").reach(Position(), "tokens", tokens).step
        )
    return LrSchedule(
        peak=settings.lr,
        minimum=settings.lr_min,
        warmup=warmup,
        decay_start=warmup if unit == decay_unit else own.reach(Position(), unit, warmup).counted(decay_unit),
        decay_end=settings.lr_decay if settings.lr_decay is not None else end,
        unit=unit,
        decay_unit=None if decay_unit == unit else decay_unit,
    )


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
