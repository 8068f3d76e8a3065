"""What a rung changes at a restart: from what the run ran with to what the trainer is to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from sentinel.plan.baseline import Baseline
from sentinel.plan.known_options import named_settings
from sentinel.plan.ladder import Rung
from sentinel.plan.lr_changes import lr_for
from sentinel.plan.pacings import (
    batch_size_for,
    curriculum_for,
    left_as_it_is,
    random_ltd_for,
    with_seqlen_of,
)
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, words_of
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.training_settings import Free, OptimizerSettings, TrainingSettings, difference

__all__ = ["added_words", "changes", "overrides_for", "plain_overrides"]


def overrides_for(
    rung: Rung,
    baseline: Baseline,
    *,
    incident: str,
    rollback: str,
    anchor: Anchor,
    new_seed: int,
    onset_past: int | None = None,
) -> Overrides:
    """What the trainer is to do differently. ConfigError when the rung needs something that nobody has reported.

    `onset_past` is the position in the data that lies safely past the onset, for a rung that skips up to there.
    """
    if not rung.restarts:
        raise ConfigError(f"rung {rung.name!r} starts nothing: there is nothing to apply at a restart")
    skip_samples = _skip_samples(rung, anchor, onset_past)
    try:
        standing = _changed(rung, baseline, anchor)
        once = Once(
            id=rollback,
            seed=new_seed if rung.reseed else None,
            skip_samples=skip_samples,
            reset_moments=rung.reset_moments and anchor.global_step > 0,  # from scratch there are none to reset
            loss_scale=_loss_scale(rung, baseline),
        )
    except ConfigError as error:
        raise ConfigError(f"rung {rung.name!r}: {error}") from error
    return Overrides(
        incident=incident,
        rollback=rollback,
        anchor=anchor,
        standing=standing,
        once=None if once == Once(id=rollback) else once,
    )


def _changed(rung: Rung, baseline: Baseline, anchor: Anchor) -> TrainingSettings:
    """What the run is to train with from the anchor on: as it was, with the rung's changes."""
    standing = with_seqlen_of(rung, replace(baseline.standing, lr=lr_for(rung, baseline, anchor)), baseline, anchor)
    return replace(
        standing,
        batch_size=batch_size_for(rung, standing.batch_size, baseline, anchor),
        random_ltd=random_ltd_for(rung, baseline, anchor),
        curriculum=curriculum_for(rung, baseline, anchor),
        free=_free(rung, baseline),
        **_numbers(rung, baseline),
    )


def _numbers(rung: Rung, baseline: Baseline) -> dict[str, Any]:
    """The settings that the rung sets as numbers. One that a free-form option names is left to that option: the value
    that the run had would be set over it."""
    numbers: dict[str, Any] = {"clip_grad": _clip_grad(rung, baseline)}
    numbers |= {setting: None for setting, _, _ in named_settings(rung.options) if setting in _OPTIMIZER}
    if any(setting == "clip_grad" for setting, _, _ in named_settings(rung.options)):
        numbers["clip_grad"] = rung.clip_grad
    return numbers | {name: value for name in _OPTIMIZER if (value := getattr(rung, name)) is not None}


_OPTIMIZER = tuple(f.name for f in fields(OptimizerSettings))


def plain_overrides(baseline: Baseline, *, incident: str, rollback: str, anchor: Anchor) -> Overrides:
    """A rollback that changes nothing but the checkpoint: the run's own settings hold, named so that it is seen."""
    return Overrides(incident=incident, rollback=rollback, anchor=anchor, standing=baseline.standing)


def changes(overrides: Overrides, baseline: Baseline) -> tuple[str, ...]:
    """What is changed, each as a phrase that a person reads."""
    standing = overrides.standing
    said = [*_once_words(overrides, baseline), *_lr_words(standing.lr, baseline.lr, overrides.anchor.global_step)]
    if standing.total_tokens not in (None, baseline.total_tokens):
        said.append(f"the run ends at {standing.total_tokens} tokens")
    for key in difference(baseline.standing, standing):
        before, after = getattr(baseline, key), getattr(standing, key)
        if isinstance(after, float):
            said.append(f"{words_of(key)} {'(not reported)' if before is None else f'{before:g}'} -> {after:g}")
        elif key in _SHOWN and after is not None:
            said.append(f"{words_of(key)} {after}")
    return (*said, *added_words(standing.free, baseline.free), *left_as_it_is(standing, baseline))


_SHOWN = ("seqlen", "shorten", "batch_size", "random_ltd", "curriculum")
"""Settings that say themselves how they go."""


def _once_words(overrides: Overrides, baseline: Baseline) -> Iterator[str]:
    once = overrides.once or Once(id=overrides.rollback)
    if once.skip_samples is not None:
        begin = overrides.anchor.consumed_samples
        where = "" if begin is None else f": {begin} to {begin + once.skip_samples - 1}"
        yield f"{once.skip_samples} samples of the data skipped{where}"
    if once.seed is not None:
        yield f"seed {baseline.seed} -> {once.seed} for the data not yet consumed"
    if once.reset_moments:
        yield "Adam's moments and step count set to 0, once"
    if once.loss_scale is not None:
        yield f"loss scale set to {once.loss_scale:g}, once"


def _lr_words(lr: LrSchedule | None, before: LrSchedule | None, step: int) -> Iterator[str]:
    if lr is None or before is None:
        return
    if lr.peak != before.peak:
        yield f"peak lr {before.peak:g} -> {lr.peak:g}"
    if lr.warmup != before.warmup or lr.anchor != before.anchor:
        yield f"LR warmup {before.warmup} -> {lr.warmup} {lr.unit} from {lr.anchor}"
        yield from _lowered(lr, before, step)
    if lr.decay_unit != before.decay_unit:
        yield f"LR decay from {lr.decay_start} to {lr.decay_end} {lr.decay_unit}"


def _lowered(lr: LrSchedule, before: LrSchedule, step: int) -> Sequence[str]:
    """That a warmup which reaches into the decay is a lower LR as well: the decay stays where it was."""
    last = max(lr.warmup_end, before.warmup_end, step + 1)
    now, planned = lr.largest(step + 1, last), before.largest(step + 1, last)
    if now is None or planned is None or lr.peak != before.peak or now[0] > 0.99 * planned[0]:
        return ()
    return (f"with it the largest LR to come {planned[0]:.3g} -> {now[0]:.3g}, at step {now[1]}: the decay goes on",)


def added_words(now: Free | None, before: Free | None) -> tuple[str, ...]:
    """The free-form changes that are new, as a person writes them."""
    now, before = now or Free(), before or Free()
    added = [f"{name}={value}" for name, value in now.environment.items() if before.environment.get(name) != value]
    removed = [f"{flag} removed" for flag in now.removed if flag not in before.removed]
    return (*added, *(option for option in now.options if option not in before.options), *removed)


def _skip_samples(rung: Rung, anchor: Anchor, onset_past: int | None) -> int | None:
    if rung.skip_samples != "past_onset":
        return rung.skip_samples
    if anchor.consumed_samples is None or onset_past is None:
        what = "the target" if anchor.consumed_samples is None else "the onset"
        raise ConfigError(f"rung {rung.name!r} skips data past the onset, and consumed_samples at {what} is unknown")
    if onset_past <= anchor.consumed_samples:
        raise ConfigError(f"rung {rung.name!r} skips data past the onset, and the target is past it already")
    return onset_past - anchor.consumed_samples


def _loss_scale(rung: Rung, baseline: Baseline) -> float | None:
    if rung.loss_scale is not None and baseline.precision not in (None, "fp16"):
        raise ConfigError(f"it sets the loss scale, which only fp16 has; the run is {baseline.precision}")
    return rung.loss_scale


def _clip_grad(rung: Rung, baseline: Baseline) -> float | None:
    if rung.clip_grad_factor is None:
        return rung.clip_grad if rung.clip_grad is not None else baseline.clip_grad
    if not baseline.clip_grad:
        why = "the trainer has not reported its own" if baseline.clip_grad is None else "the run does not clip"
        raise ConfigError(f"it multiplies the gradient clipping, and {why}: give clip_grad")
    return baseline.clip_grad * rung.clip_grad_factor


def _free(rung: Rung, baseline: Baseline) -> Free | None:
    before = baseline.free or Free()
    added = dict(variable.split("=", 1) for variable in rung.environment)
    replaced = {option.partition("=")[0] for option in rung.options} | set(rung.remove_options)
    made = Free(
        environment=dict(before.environment) | added,
        options=(*(o for o in before.options if o.partition("=")[0] not in replaced), *rung.options),
        removed=(*(flag for flag in before.removed if flag not in replaced), *rung.remove_options),
    )
    return None if made == Free() else made
