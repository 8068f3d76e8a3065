"""The schedules that a rung switches on, counted from the target: sequence length, batch, random-LTD, curriculum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sentinel.plan.choose.ladder import Rung
from sentinel.plan.incident.baseline import Baseline, lr_warmup_steps
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
    MetricSchedule,
    Mixed,
    Position,
    RandomLtdSchedule,
    SeqlenSchedule,
    SlwRun,
    Track,
    slw_changes,
    start_for_size,
)
from sentinel.vocabulary.training_settings import TrainingSettings


def with_seqlen_of(rung: Rung, standing: TrainingSettings, baseline: Baseline, anchor: Anchor) -> TrainingSettings:
    """The settings in effect, with the rung's sequence length warmup and all that goes with it. ConfigError, here as
    below, where the rung needs what the trainer has not reported."""
    if rung.seqlen_start is None:
        return standing
    seqlen, shorten = _seqlen(rung, baseline, anchor), rung.seqlen_shorten or baseline.shorten
    standing = replace(standing, seqlen=seqlen, shorten=shorten)
    if rung.seqlen_by_tokens is False and baseline.lr_from_start:
        raise ConfigError("a job script gets all that goes with SLW: leave seqlen_by_tokens out")
    if rung.seqlen_by_tokens is False or not seqlen.warms_up:
        batch = standing.batch_size
        no_ramp = replace(batch, ramp_samples=0) if batch is not None and batch.warms_up else batch
        return replace(standing, batch_size=no_ramp)
    if rung.seqlen_by_tokens and (shorten or "truncate").startswith("reshape"):
        raise ConfigError("a reshape keeps the tokens of a step, so leave seqlen_by_tokens out")
    by_tokens = rung.seqlen_by_tokens or baseline.lr_from_start  # a job script gets all that goes with SLW
    if by_tokens and (missing := _not_reported(baseline)):
        raise ConfigError(f"it counts by tokens, and the trainer has not reported {', '.join(missing)}")
    return with_slw(standing, baseline, anchor)


def with_slw(standing: TrainingSettings, baseline: Baseline, anchor: Anchor) -> TrainingSettings:
    """The settings in effect, with all that their sequence length warmup changes, as far as the baseline tells."""
    batch, full, seqlen = baseline.batch_size, baseline.full_seqlen, standing.seqlen
    if batch is None or full is None or seqlen is None:
        return standing
    run = SlwRun(
        full_seqlen=full,
        batch=batch,
        at=position_at(anchor, baseline),
        seqlen=baseline.seqlen,
        shorten=baseline.shorten or "truncate",
        lr=standing.lr,
        **{name: getattr(baseline, name) for name in ("total_steps", "total_samples", "total_tokens")},
        counts=None if not baseline.lr_from_start else "steps" if baseline.total_samples is None else "samples",
    )
    changed = slw_changes(run, seqlen, shorten=standing.shorten or "truncate")
    return replace(standing, batch_size=changed.batch, total_tokens=changed.total_tokens, lr=changed.lr)


def left_as_it_is(standing: TrainingSettings, baseline: Baseline) -> Iterator[str]:
    """What a warmup of the sequence length would change as well and can't, since it is not reported; in words."""
    begins = standing.seqlen is not None and standing.seqlen != baseline.seqlen and standing.seqlen.warms_up
    by_tokens = standing.total_tokens is not None or (standing.lr is not None and standing.lr.decay_unit == "tokens")
    if begins and not (standing.shorten or "truncate").startswith("reshape"):
        missing = _not_reported(baseline)
        if missing and not (by_tokens and missing == ["the LR schedule"]):
            yield f"the end and the LR stay as they are, as far as the trainer has not reported {', '.join(missing)}"


def _not_reported(baseline: Baseline) -> list[str]:
    ends = (baseline.total_steps, baseline.total_samples, baseline.total_tokens)
    needed = {
        "the full length": baseline.full_seqlen,
        "the global batch": baseline.batch_size,
        "the LR schedule": baseline.lr,
        "where the run ends": next((end for end in ends if end is not None), None),
    }
    return [what for what, value in needed.items() if value is None]


def position_at(anchor: Anchor, baseline: Baseline) -> Position:
    """The target's position; what is not reported is counted from the schedules, where the LR does not go by it.
    ConfigError where it does, or where the batch and the full length are not known."""
    batch, full = baseline.batch_size, baseline.full_seqlen
    samples, tokens = anchor.consumed_samples, anchor.consumed_tokens
    unit = baseline.lr.unit if baseline.lr is not None else "steps"
    known = {"steps": anchor.global_step, "samples": samples, "tokens": tokens}
    if batch is None or full is None or known[unit] is None:
        raise ConfigError(f"the LR warmup can't be re-sized: the target's consumed_{unit} is not known")
    if samples is None:
        samples = Track(full=full, batch=batch).reach(Position(), "steps", anchor.global_step).samples
    return Position(step=anchor.global_step, samples=samples, tokens=samples * full if tokens is None else tokens)


def _seqlen(rung: Rung, baseline: Baseline, anchor: Anchor) -> SeqlenSchedule:
    full = baseline.full_seqlen
    if full is None:
        raise ConfigError("it warms the sequence length up, and the trainer has not reported the full length")
    asked = start_for_size(baseline.parameters) if rung.seqlen_start == "by_size" else rung.seqlen_start or 0
    start, multiple = min(asked, full), rung.seqlen_multiple or 8
    common: dict[str, Any] = {"start": start, "full": full, "anchor_step": anchor.global_step, "multiple": multiple}
    match rung.seqlen_pacing:
        case "adaptive":
            return Adaptive(**common)
        case "custom":
            return Custom(**common, function=rung.seqlen_function or "")
        case "mixed":
            return Mixed(**common, total_steps=rung.seqlen_total_steps)
    steps = _total_steps(rung, baseline)
    match rung.seqlen_pacing:
        case "fixed_root":
            return FixedRoot(**common, total_steps=steps, root_degree=rung.seqlen_root_degree or 2.0)
        case "fixed_discrete":
            return FixedDiscrete(**common, difficulties=(start, full), max_steps=(steps,))
    return FixedLinear(**common, total_steps=steps)


def _total_steps(rung: Rung, baseline: Baseline) -> int:
    if rung.seqlen_total_steps is not None:
        return rung.seqlen_total_steps
    if (warmup := lr_warmup_steps(baseline)) is None:
        raise ConfigError("it needs seqlen_total_steps: there is no LR warmup in steps to go by")
    begin, end = warmup
    return 3 * (end - begin)


def batch_size_for(
    rung: Rung, before: BatchSizeSchedule | None, baseline: Baseline, anchor: Anchor
) -> BatchSizeSchedule | None:
    """The batch after the restart; `before` is the one in effect without the rung's own warmup of it. ConfigError
    also where a sequence length that warms up is in force."""
    if rung.batch_size_start is None or rung.batch_size_samples is None:
        return before
    if before is None or anchor.consumed_samples is None:
        what = "the full batch" if before is None else "consumed_samples at the target"
        raise ConfigError(f"it warms the batch up, and the trainer has not reported {what}")
    seqlen, full = baseline.seqlen, before.full
    if seqlen is not None and seqlen.warms_up and (seqlen.end_step is None or seqlen.end_step > anchor.global_step):
        raise ConfigError(SLW_AND_BATCH)
    return BatchSizeSchedule(
        start=rung.batch_size_start,
        full=full,
        increment=rung.batch_size_increment or rung.batch_size_start,
        ramp_samples=rung.batch_size_samples,
        anchor_samples=anchor.consumed_samples,
    )


def random_ltd_for(rung: Rung, baseline: Baseline, anchor: Anchor) -> RandomLtdSchedule | None:
    """Random-LTD after the restart, in the layers that it had. ConfigError where its start is above the full length."""
    if rung.random_ltd_start is None or rung.random_ltd_total_steps is None:
        return baseline.random_ltd
    if baseline.full_seqlen is None:
        raise ConfigError("it drops tokens, and the trainer has not reported the full length")
    return RandomLtdSchedule(
        start=rung.random_ltd_start,
        full=baseline.full_seqlen,
        total_steps=rung.random_ltd_total_steps,
        anchor_step=anchor.global_step,
        layers=None if baseline.random_ltd is None else baseline.random_ltd.layers,
    )


def curriculum_for(rung: Rung, baseline: Baseline, anchor: Anchor) -> CurriculumSchedule | None:
    """The curriculum after the restart: the rung's metric, beside those that paced the data already."""
    metric, index, total_steps = rung.curriculum_metric, rung.curriculum_index, rung.curriculum_total_steps
    if metric is None or index is None or total_steps is None:
        return baseline.curriculum
    difficulty = DifficultySchedule(
        kind=rung.curriculum_kind or "percentile",
        start=rung.curriculum_start or 1,
        full=rung.curriculum_full or 100,
        total_steps=total_steps,
        root_degree=rung.curriculum_root_degree or 2.0,
        anchor_step=anchor.global_step,
    )
    before = {} if baseline.curriculum is None else dict(baseline.curriculum.metrics)
    return CurriculumSchedule(metrics=before | {metric: MetricSchedule(difficulty=difficulty, index=index)})
