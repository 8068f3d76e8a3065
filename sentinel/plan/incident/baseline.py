"""What the run trained with when the incident began, and what its past says of the onset, as the log has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sentinel.judge.analysis.departures import FirstMoved
from sentinel.judge.analysis.first_mover import SIGNALS, moved_before, reads_from
from sentinel.judge.readings import stretches_of
from sentinel.judge.recovery_check import WINDOW, BestMean
from sentinel.vocabulary.codec import Described, read
from sentinel.vocabulary.overrides import STANDING
from sentinel.vocabulary.pacing import Position, Track
from sentinel.vocabulary.reported_settings import AS_REPORTED, reported_settings
from sentinel.vocabulary.sample import RunStarted, Sample
from sentinel.vocabulary.training_settings import Free, TrainingSettings, settings_of

_CONFIRMS_STEPS, _CONFIRM = 100, 2  # after the late end: a reading has moved where one of the next two has too


@dataclass(frozen=True, slots=True, kw_only=True)
class OnsetReadings:
    """What the run's past says of the late end of an onset, as `opened` records it; None where it was not reported."""

    onset_tokens: int | None = None
    onset_samples: int | None = None
    batch_samples: int | None = None
    best_mean: float | None = None  # best 20-sample mean of the loss before the early end of the onset, nats
    moved_first: FirstMoved | None = None  # None in the logs of older versions


def onset_readings(
    lineage: Iterable[Sample], onset_range: tuple[int, int], full_seqlen: int | None, clip: float | None = None
) -> OnsetReadings:
    """Goes once through the attempt's lineage, which is ordered by step. `clip`: see `instability_before`."""
    best, at, (early, late) = BestMean(WINDOW, full_seqlen), None, onset_range
    near, first, after = list[Sample](), reads_from(onset_range), 0
    for sample in lineage:
        if sample.global_step < early:
            best.push(sample)
        elif sample.global_step == late:
            at = sample
        after += sample.global_step > late
        if sample.global_step >= first and (after <= _CONFIRM or sample.global_step <= late + _CONFIRMS_STEPS):
            near.append(sample)
    found = OnsetReadings(best_mean=best.value)
    if near:
        found = replace(found, moved_first=moved_before(stretches_of(near, SIGNALS), onset_range, clip))
    if at is None:
        return found
    tokens, samples = at.consumed_tokens, at.consumed_samples
    return replace(found, onset_tokens=tokens, onset_samples=samples, batch_samples=at.global_batch_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline(TrainingSettings, Described):
    """What the run trained with when the incident began, and who says so: each rung changes this, not what the last
    rung left. None is what the trainer has not reported; a schedule that does nothing is one that is switched off."""

    own_peak_lr: float | None = None  # what the run's first attempt reported: factors of a rung are of it
    own_lr_warmup: int | None = None  # likewise, in the unit of `lr`
    own_clip_grad: float | None = None  # likewise
    lr_unknown: str | None = None  # why the trainer reports no LR schedule, as a phrase; None where it gives no reason
    lr_from_start: bool | None = None  # whether the LR's warmup counts from the run's beginning, as Megatron's does
    from_arguments: tuple[str, ...] = ()  # fields read from the trainer's arguments, not from what it runs with
    by_script: tuple[str, ...] = ()  # fields that the trainer has not reported, and that its job script shows

    @property
    def standing(self) -> TrainingSettings:
        """What overrides.json holds so that all stays as it was, whatever an earlier incident has changed."""
        kept = {name: getattr(self, name) for name in STANDING}
        if self.total_steps is not None:  # the run ends by its steps as well
            kept["total_tokens"] = None
        free = self.free if self.free != Free() else None
        off = {name: getattr(self, name) or None for name in ("skipped", "qk_clip", "lr_factor_of")}
        return TrainingSettings(**kept | {"free": free} | off)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Baseline:
        """The baseline that to_json gave, also that of another version. ConfigError for anything else."""
        lists = {key: data.get(key) or () for key in ("from_arguments", "by_script")}
        return read(cls, {**data, **lists}, "baseline", AS_REPORTED)


def baseline_of(started: RunStarted | None) -> Baseline:
    """What an attempt reported to train with. ConfigError for a schedule of an unknown kind."""
    if started is None:
        return Baseline()
    settings = reported_settings(started)
    names = {setting.reported_as: name for name, setting in settings_of().items() if setting.reported_as}
    return Baseline(
        **{f.name: getattr(settings, f.name) for f in fields(settings)},
        lr_unknown=started.lr_schedule_unknown if settings.lr is None else None,
        from_arguments=tuple(names.get(name, name) for name in started.from_arguments or ()),
    )


def with_own_start(baseline: Baseline, first: RunStarted | None) -> Baseline:
    """With what the run's first attempt reported of what a rung multiplies; as it is where that is not known."""
    if first is None or first.rollback is not None:
        return baseline
    own = baseline_of(first)
    same_unit = own.lr is not None and baseline.lr is not None and own.lr.unit == baseline.lr.unit
    return replace(
        baseline,
        own_peak_lr=own.lr.peak if own.lr is not None else None,
        own_lr_warmup=own.lr.warmup if own.lr is not None and same_unit else None,
        own_clip_grad=own.clip_grad,
    )


def filled(reported: Baseline, script: Baseline | None) -> Baseline:
    """What the trainer has reported, and for what it has not, what its script asks for."""
    if script is None:
        return reported
    gaps = {f.name: getattr(script, f.name) for f in fields(Baseline) if getattr(reported, f.name) is None}
    if reported.lr_unknown is not None:  # the trainer has an LR schedule, and it is not the one of its arguments
        gaps["lr"] = None
    shown = tuple(name for name, value in gaps.items() if value is not None and name != "lr_from_start")
    return replace(reported, **gaps, by_script=(*reported.by_script, *shown))


def warmup_end(started: RunStarted) -> int | None:
    """The step at which the attempt's LR, sequence length, random-LTD and curriculum have come to their ends. None
    where none of them is known in steps."""
    settings = reported_settings(started)
    ends = [settings.lr.warmup_end] if settings.lr is not None and settings.lr.unit == "steps" else []
    others = (settings.seqlen, settings.random_ltd, settings.curriculum)
    ends += [schedule.end_step for schedule in others if schedule is not None and schedule.end_step is not None]
    return max(ends, default=None)


def lr_warmup_steps(baseline: Baseline) -> tuple[int, int] | None:
    """The steps at which the LR warmup begins and ends; None where there is none, or where it can't be counted."""
    lr, batch, full = baseline.lr, baseline.batch_size, baseline.full_seqlen
    if lr is None or not lr.warmup:
        return None
    if lr.unit == "steps":
        return lr.anchor, lr.warmup_end
    if batch is None or full is None:
        return None
    track = Track(full=full, batch=batch, seqlen=baseline.seqlen, shorten=baseline.shorten or "truncate")
    begin, end = (track.reach(Position(), lr.unit, count).step for count in (lr.anchor, lr.warmup_end))
    return begin, end
