"""What the newest attempt has reported, as mitigations change it and as the judge needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from statistics import median
from typing import Any, TypeVar

from sentinel.judge.history import Attempt
from sentinel.plan.baseline import Baseline
from sentinel.vocabulary.overrides import Free
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    LrSchedule,
    RandomLtdSchedule,
    SeqlenSchedule,
    shortening,
)
from sentinel.vocabulary.sample import RunStarted
from sentinel.vocabulary.skipping import SkippedRange

__all__ = ["baseline_of", "filled", "step_time_s", "warmup_end"]

T = TypeVar("T")


def baseline_of(started: RunStarted | None) -> Baseline:
    """What an attempt reported to run with, as mitigations change it. ConfigError for what is of another kind."""
    if started is None:
        return Baseline()
    skipped = started.skipped_ranges
    return Baseline(
        seed=started.seed,
        lr=_read(LrSchedule.from_json, started.lr_schedule or None),
        seqlen=_read(SeqlenSchedule.from_json, started.seqlen_schedule or None),
        full_seqlen=started.full_seqlen,
        total_steps=started.total_steps,
        total_tokens=started.total_tokens,
        shorten=shortening(started.seqlen_shortening),
        batch_size=_read(BatchSizeSchedule.from_json, started.batch_size_schedule),
        random_ltd=_read(RandomLtdSchedule.from_json, started.random_ltd_schedule),
        curriculum=_read(CurriculumSchedule.from_json, started.curriculum_schedule),
        adam_beta1=started.adam_beta1,
        adam_beta2=started.adam_beta2,
        weight_decay=started.weight_decay,
        clip_grad=started.gradient_clipping,
        precision=started.precision,
        parameters=started.parameters,
        loss_scale=started.loss_scale,
        skipped=None if skipped is None else tuple(SkippedRange.from_json(r) for r in skipped),
        moments_reset_steps=started.moments_reset_steps,
        free=None if started.free is None else Free.from_json(started.free),
        from_arguments=tuple(_BASELINE_KEYS.get(name, name) for name in started.from_arguments or ()),
    )


_BASELINE_KEYS = {"gradient_clipping": "clip_grad", "lr_schedule": "lr"}
"""Field of RunStarted -> that of Baseline, where they differ."""


def _read(from_json: Callable[[dict[str, Any]], T], told: dict[str, Any] | None) -> T | None:
    return None if told is None else from_json(told)


def warmup_end(started: RunStarted) -> int | None:
    """The step at which the attempt's LR, sequence length, random-LTD and curriculum have come to their ends.

    None where none of them is known in steps.
    """
    baseline = baseline_of(started)
    ends = []
    if baseline.lr is not None and baseline.lr.unit == "steps":
        ends.append(baseline.lr.warmup_end)
    if baseline.seqlen is not None and baseline.seqlen.end_step is not None:
        ends.append(baseline.seqlen.end_step)
    ends += [schedule.end_step for schedule in (baseline.random_ltd, baseline.curriculum) if schedule is not None]
    return max(ends, default=None)


def filled(reported: Baseline, script: Baseline | None) -> Baseline:
    """What the trainer has reported, and for what it has not, what its script asks for."""
    if script is None:
        return reported
    gaps = {f.name: getattr(script, f.name) for f in fields(Baseline) if getattr(reported, f.name) is None}
    shown = tuple(name for name, value in gaps.items() if value is not None and name != "lr_from_start")
    return replace(reported, **gaps, by_script=(*reported.by_script, *shown))


def step_time_s(attempt: Attempt | None) -> float | None:
    """Median seconds of the last hundred steps; None where they were not measured."""
    times = [s.step_time_s for s in attempt.samples[-100:] if s.step_time_s is not None] if attempt else []
    return median(times) if times else None
