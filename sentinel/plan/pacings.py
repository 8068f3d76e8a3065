"""The schedules that a rung switches on, counted from the target: sequence length, batch, random-LTD, curriculum."""

from __future__ import annotations

from dataclasses import replace

from sentinel.plan.baseline import Baseline
from sentinel.plan.rung import Rung
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import (
    SLW_AND_BATCH,
    Adaptive,
    BatchSizeSchedule,
    CurriculumSchedule,
    Custom,
    DifficultySchedule,
    FixedDiscrete,
    FixedLinear,
    FixedRoot,
    LrSchedule,
    MetricSchedule,
    Mixed,
    RandomLtdSchedule,
    SeqlenSchedule,
)

__all__ = [
    "batch_size_for",
    "curriculum_for",
    "decayed_by_tokens",
    "random_ltd_for",
    "seqlen_for",
    "total_tokens_for",
]


def seqlen_for(rung: Rung, baseline: Baseline, anchor: Anchor) -> SeqlenSchedule | None:
    """The sequence length after the restart. ConfigError where the rung needs what nobody has reported."""
    if rung.seqlen_start is None:
        return baseline.seqlen
    full = baseline.full_seqlen
    if full is None:
        raise ConfigError(f"rung {rung.name!r} warms the sequence length up, and nobody has reported the full length")
    start, at, multiple = min(rung.seqlen_start, full), anchor.global_step, rung.seqlen_multiple or 8
    match rung.seqlen_pacing:
        case "adaptive":
            return Adaptive(start=start, full=full, anchor_step=at, multiple=multiple)
        case "custom":
            function = rung.seqlen_function or ""
            return Custom(start=start, full=full, anchor_step=at, multiple=multiple, function=function)
        case "mixed":
            total = rung.seqlen_total_steps
            return Mixed(start=start, full=full, anchor_step=at, multiple=multiple, total_steps=total)
    steps = _total_steps(rung, baseline)
    match rung.seqlen_pacing:
        case "fixed_root":
            degree = rung.seqlen_root_degree or 2.0
            return FixedRoot(
                start=start, full=full, anchor_step=at, multiple=multiple, total_steps=steps, root_degree=degree
            )
        case "fixed_discrete":
            return FixedDiscrete(
                start=start,
                full=full,
                anchor_step=at,
                multiple=multiple,
                difficulties=(start, full),
                max_steps=(steps,),
            )
    return FixedLinear(start=start, full=full, anchor_step=at, multiple=multiple, total_steps=steps)


def total_tokens_for(rung: Rung, baseline: Baseline) -> int | None:
    """The tokens at which the run ends after the restart; None leaves the end as the run has it.

    ConfigError where the rung needs what nobody has reported.
    """
    if not rung.seqlen_by_tokens:
        return baseline.total_tokens if baseline.total_steps is None else None
    if baseline.total_steps is None:
        if baseline.total_tokens is None:
            raise ConfigError(f"rung {rung.name!r} ends the run by tokens, and nobody has reported where it ends")
        return baseline.total_tokens
    return baseline.total_steps * _tokens_per_step(rung, baseline)


def decayed_by_tokens(rung: Rung, baseline: Baseline, lr: LrSchedule) -> LrSchedule:
    """The same LR with its decay by tokens, where the rung asks for it and it goes by steps so far."""
    if not rung.seqlen_by_tokens or (lr.decay_unit or lr.unit) == "tokens":
        return lr
    each = _tokens_per_step(rung, baseline)
    return replace(lr, decay_unit="tokens", decay_start=lr.decay_start * each, decay_end=lr.decay_end * each)


def _tokens_per_step(rung: Rung, baseline: Baseline) -> int:
    """At the full length and the full batch."""
    if (rung.seqlen_shorten or baseline.shorten or "truncate").startswith("reshape"):
        raise ConfigError(f"rung {rung.name!r}: a reshape keeps the tokens of a step, so leave seqlen_by_tokens out")
    if baseline.full_seqlen is None or baseline.batch_size is None:
        raise ConfigError(f"rung {rung.name!r} counts by tokens, and nobody has reported the full length and the batch")
    return baseline.full_seqlen * baseline.batch_size.full


def _total_steps(rung: Rung, baseline: Baseline) -> int:
    if rung.seqlen_total_steps is not None:
        return rung.seqlen_total_steps
    if baseline.lr is None or baseline.lr.unit != "steps" or not baseline.lr.warmup:
        raise ConfigError(f"rung {rung.name!r} needs seqlen_total_steps: there is no LR warmup in steps to go by")
    return 3 * baseline.lr.warmup


def batch_size_for(rung: Rung, baseline: Baseline, anchor: Anchor) -> BatchSizeSchedule | None:
    """The batch after the restart: where the rung switches SLW on, a batch-size warmup is over.

    ConfigError where the rung needs what nobody has reported, or where a sequence length that warms up is in force.
    """
    before = baseline.batch_size
    if rung.batch_size_start is None or rung.batch_size_samples is None:
        if before is not None and before.warms_up and rung.seqlen_start is not None:
            return replace(before, ramp_samples=0)
        return before
    if before is None or anchor.consumed_samples is None:
        what = "the full batch" if before is None else "consumed_samples at the target"
        raise ConfigError(f"rung {rung.name!r} warms the batch up, and nobody has reported {what}")
    seqlen, full = baseline.seqlen, before.full
    if seqlen is not None and seqlen.warms_up and (seqlen.end_step is None or seqlen.end_step > anchor.global_step):
        raise ConfigError(f"rung {rung.name!r}: {SLW_AND_BATCH}")
    try:
        return BatchSizeSchedule(
            start=rung.batch_size_start,
            full=full,
            increment=rung.batch_size_increment or rung.batch_size_start,
            ramp_samples=rung.batch_size_samples,
            anchor_samples=anchor.consumed_samples,
        )
    except ConfigError as error:
        raise ConfigError(f"rung {rung.name!r}: {error}") from error


def random_ltd_for(rung: Rung, baseline: Baseline, anchor: Anchor) -> RandomLtdSchedule | None:
    """Random-LTD after the restart, in the layers that it had. ConfigError where its start is above the full length."""
    if rung.random_ltd_start is None or rung.random_ltd_total_steps is None:
        return baseline.random_ltd
    if baseline.full_seqlen is None:
        raise ConfigError(f"rung {rung.name!r} drops tokens, and nobody has reported the full length")
    try:
        return RandomLtdSchedule(
            start=rung.random_ltd_start,
            full=baseline.full_seqlen,
            total_steps=rung.random_ltd_total_steps,
            anchor_step=anchor.global_step,
            layers=None if baseline.random_ltd is None else baseline.random_ltd.layers,
        )
    except ConfigError as error:
        raise ConfigError(f"rung {rung.name!r}: {error}") from error


def curriculum_for(rung: Rung, baseline: Baseline, anchor: Anchor) -> CurriculumSchedule | None:
    """The curriculum after the restart: the rung's metric, beside those that paced the data already."""
    metric, index, total_steps = rung.curriculum_metric, rung.curriculum_index, rung.curriculum_total_steps
    if metric is None or index is None or total_steps is None:
        return baseline.curriculum
    try:
        difficulty = DifficultySchedule(
            kind=rung.curriculum_kind or "percentile",
            start=rung.curriculum_start or 1,
            full=rung.curriculum_full or 100,
            total_steps=total_steps,
            root_degree=rung.curriculum_root_degree or 2.0,
            anchor_step=anchor.global_step,
        )
    except ConfigError as error:
        raise ConfigError(f"rung {rung.name!r}: {error}") from error
    before = {} if baseline.curriculum is None else dict(baseline.curriculum.metrics)
    return CurriculumSchedule(metrics=before | {metric: MetricSchedule(difficulty=difficulty, index=index)})
