"""What a rung changes at a restart, and what of it the trainer or its job script can apply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.pacings import (
    batch_size_for,
    curriculum_for,
    left_as_it_is,
    position_at,
    random_ltd_for,
    with_seqlen_of,
)
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.observation import RunSettings, StartSeen
from sentinel.vocabulary.codec import fields_of
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, words_of
from sentinel.vocabulary.pacing import LrSchedule, Track
from sentinel.vocabulary.training_settings import Free, OptimizerSettings, TrainingSettings, difference, named_settings

_OPTIMIZER = tuple(f.name for f in fields(OptimizerSettings))
_SHOWN = ("seqlen", "shorten", "batch_size", "random_ltd", "curriculum")  # settings that say themselves how they go


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
    """What the trainer is to do differently. ConfigError when the rung needs a fact that is not reported.
    `onset_past` is the position in the data that lies safely past the onset, for a rung that skips up to there."""
    if rung.bisect:
        raise ConfigError(f"rung {rung.name!r} follows from `sentinel bisect`: its change is not known before")
    if not rung.restarts:
        raise ConfigError(f"rung {rung.name!r} starts nothing: there is nothing to apply at a restart")
    once = Once(
        id=rollback,
        seed=new_seed if rung.reseed else None,
        skip_samples=_skip_samples(rung, anchor, onset_past),
        reset_moments=rung.reset_moments and anchor.global_step > 0,  # from scratch there are none to reset
        loss_scale=rung.loss_scale,
    )
    try:
        standing = _changed(rung, baseline, anchor)
        if rung.loss_scale is not None and baseline.precision not in (None, "fp16"):
            raise ConfigError(f"it sets the loss scale, which only fp16 has; the run is {baseline.precision}")
    except ConfigError as error:
        raise ConfigError(f"rung {rung.name!r}: {error}") from error
    made = None if once == Once(id=rollback) else once
    if made is None and standing == baseline.standing and rung.changes_settings:
        raise ConfigError(f"rung {rung.name!r}: the run trains with what it sets already")
    return Overrides(incident=incident, rollback=rollback, anchor=anchor, standing=standing, once=made)


def _changed(rung: Rung, baseline: Baseline, anchor: Anchor) -> TrainingSettings:
    standing = with_seqlen_of(rung, replace(baseline.standing, lr=lr_for(rung, baseline, anchor)), baseline, anchor)
    return replace(
        standing,
        batch_size=batch_size_for(rung, standing.batch_size, baseline, anchor),
        random_ltd=random_ltd_for(rung, baseline, anchor),
        curriculum=curriculum_for(rung, baseline, anchor),
        qk_clip=rung.qk_clip or baseline.qk_clip or None,
        lr_factor_of={**(baseline.lr_factor_of or {}), **(rung.lr_factor_of or {})} or None,
        free=_free(rung, baseline),
        **_numbers(rung, baseline),
    )


def _numbers(rung: Rung, baseline: Baseline) -> dict[str, Any]:
    numbers: dict[str, Any] = {"clip_grad": _clip_grad(rung, baseline)}
    for setting, _, _ in named_settings(rung.options):  # left to the option: the run's own value would be set over it
        if setting in _OPTIMIZER:
            numbers[setting] = None
        elif setting == "clip_grad":
            numbers[setting] = rung.clip_grad
    return numbers | {name: value for name in _OPTIMIZER if (value := getattr(rung, name)) is not None}


def plain_overrides(baseline: Baseline, *, incident: str, rollback: str, anchor: Anchor) -> Overrides:
    """A rollback that changes nothing but the checkpoint: the run's own settings hold, named so that it is seen."""
    return Overrides(incident=incident, rollback=rollback, anchor=anchor, standing=baseline.standing)


def changes(overrides: Overrides, baseline: Baseline) -> tuple[str, ...]:
    standing = overrides.standing
    said = [*_once_words(overrides, baseline), *_lr_words(standing.lr, baseline, overrides.anchor.global_step)]
    if standing.total_tokens not in (None, baseline.total_tokens):
        said.append(f"the run ends at {standing.total_tokens} tokens")
    for key in difference(baseline.standing, standing):
        before, after = getattr(baseline, key), getattr(standing, key)
        if isinstance(after, float):
            said.append(f"{words_of(key)} {'(not reported)' if before is None else f'{before:g}'} -> {after:g}")
        elif key in _SHOWN and after is not None:
            said.append(f"{words_of(key)} {after}")
        elif key == "lr_factor_of":
            said += [f"LR of {name} x {x:g}" for name, x in after.items() if (before or {}).get(name) != x]
    return (*said, *added_words(standing.free, baseline.free), *left_as_it_is(standing, baseline))


def _once_words(overrides: Overrides, baseline: Baseline) -> Iterator[str]:
    once = overrides.once or Once(id=overrides.rollback)
    if once.skip_samples is not None:
        begin = overrides.anchor.consumed_samples
        where = "" if begin is None else f": {begin} to {begin + once.skip_samples - 1}"
        yield f"{once.skip_samples} samples of the data skipped{where}"
    if once.seed is not None:
        before = "unknown" if baseline.seed is None else baseline.seed
        yield f"seed {before} -> {once.seed} for the data not yet consumed"
    if once.reset_moments:
        yield "Adam's moments and step count set to 0, once"
    if once.loss_scale is not None:
        yield f"loss scale set to {once.loss_scale:g}, once"


def _lr_words(lr: LrSchedule | None, baseline: Baseline, step: int) -> Iterator[str]:
    if lr is None or (before := baseline.lr) is None:
        return
    if lr.peak != before.peak:
        own = baseline.own_peak_lr
        of_own = f" (the run began with {own:g})" if own not in (None, before.peak) else ""
        yield f"peak lr {before.peak:g} -> {lr.peak:g}{of_own}{_minimum_words(before, lr)}"
    if lr.warmup != before.warmup or lr.anchor != before.anchor:
        own_warmup = baseline.own_lr_warmup
        of_own = f" (the run began with {own_warmup})" if own_warmup not in (None, before.warmup) else ""
        yield f"LR warmup {before.warmup} -> {lr.warmup} {lr.unit} from {lr.anchor}{of_own}"
        # a warmup that reaches into the decay is a lower LR as well: the decay stays where it was
        last = max(lr.warmup_end, before.warmup_end, step + 1)
        now, planned = lr.largest(step + 1, last), before.largest(step + 1, last)
        if now is not None and planned is not None and lr.peak == before.peak and now[0] <= 0.99 * planned[0]:
            largest = f"{planned[0]:.3g} -> {now[0]:.3g}"
            yield f"with it the largest LR to come {largest}, at step {now[1]}: the decay goes on"
    if lr.decay_unit != before.decay_unit:
        yield f"LR decay from {lr.decay_start} to {lr.decay_end} {lr.decay_unit}"


def _minimum_words(before: LrSchedule, now: LrSchedule) -> str:
    return f", and with it the minimum {before.minimum:g} -> {now.minimum:g}" if now.minimum != before.minimum else ""


def added_words(now: Free | None, before: Free | None) -> tuple[str, ...]:
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


def _clip_grad(rung: Rung, baseline: Baseline) -> float | None:
    if rung.clip_grad_factor is None:
        return rung.clip_grad if rung.clip_grad is not None else baseline.clip_grad
    if not baseline.clip_grad:
        why = "the trainer has not reported its own" if baseline.clip_grad is None else "the run does not clip"
        raise ConfigError(f"it multiplies the gradient clipping, and {why}: give clip_grad")
    return _multiple(rung, rung.clip_grad_factor, baseline.clip_grad, baseline.own_clip_grad, "gradient clipping")


def _multiple(rung: Rung, factor: float, now: float, own: float | None, what: str) -> float:
    """A factor of what the run had at its own start, or, where `compound` says so or that is not known, has now.
    ConfigError where that would undo what an earlier incident has lowered, or raised."""
    made = factor * (now if rung.compound or not own else own)
    if (factor < 1 and made >= now) or (factor > 1 and made <= now):
        raise ConfigError(
            f"{factor:g} of the {what} that the run began with is {made:.3g}, and it runs with {now:.3g} already: "
            "compound = true multiplies what it runs with"
        )
    return made


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


def lr_for(rung: Rung, baseline: Baseline, anchor: Anchor) -> LrSchedule | None:
    """The LR with the rung's own factors; what a sequence length warmup changes of it comes on top. ConfigError where
    the rung needs what the trainer has not reported."""
    lr = baseline.lr
    if rung.lr_warmup_factor is None and rung.lr_factor is None:
        return lr
    if lr is None:
        why = baseline.lr_unknown or "the trainer has not reported its LR schedule"
        raise ConfigError(f"it changes the LR, and {why}")
    if rung.lr_warmup_factor is not None and not lr.warmup:
        raise ConfigError("it makes the LR warmup longer, and the run has none")
    if rung.lr_factor is not None:
        peak = _multiple(rung, rung.lr_factor, lr.peak, baseline.own_peak_lr, "peak LR")
        lr = lr.with_peak(peak)
    if rung.lr_warmup_factor is None:
        return lr
    counted = _counted(lr, baseline, anchor)
    own = lr.warmup if rung.compound else baseline.own_lr_warmup or lr.warmup
    longer = replace(lr, warmup=round(own * rung.lr_warmup_factor))
    if baseline.lr_from_start and lr.decay_end and lr.decay_unit in (None, lr.unit) and lr.decay_start == lr.warmup_end:
        longer = replace(longer, decay_start=longer.warmup_end)  # such trainers decay from the end of the warmup
    lr = longer
    return _from_the_start(lr, counted, baseline, anchor) if baseline.lr_from_start else replace(lr, anchor=counted)


def _counted(lr: LrSchedule, baseline: Baseline, anchor: Anchor) -> int:
    """The target, in the unit that the LR counts."""
    at = {"steps": anchor.global_step, "samples": anchor.consumed_samples, "tokens": anchor.consumed_tokens}
    if (counted := at[lr.unit]) is None:
        raise ConfigError(f"the LR counts {lr.unit}, and the target's consumed_{lr.unit} is unknown")
    if lr.unit == "tokens" and baseline.random_ltd is not None and baseline.random_ltd.drops:
        raise ConfigError(  # counted from consumed_tokens, it would stay at 0 until the others have caught up
            "the LR counts the tokens that random-LTD leaves, and the trainer has not reported how many they are there"
        )
    return counted


def _from_the_start(lr: LrSchedule, counted: int, baseline: Baseline, anchor: Anchor) -> LrSchedule:
    """For Megatron, whose LR is peak x consumed / warmup at every start: longer, and from the same beginning. Where its
    decay counts tokens and its warmup samples, the warmup ends with a step: Microsoft's scheduler takes the tokens to
    decay from when it meets that end exactly, and dies where it does not."""
    if counted >= lr.warmup_end:
        raise ConfigError(
            f"Megatron counts the LR warmup from the run's beginning, and one of {lr.warmup} "
            f"{lr.unit} is over at the target, {counted} {lr.unit}: give a larger lr_warmup_factor"
        )
    if lr.unit != "samples" or lr.decay_unit != "tokens" or baseline.batch_size is None or baseline.full_seqlen is None:
        return lr
    track = Track(full=baseline.full_seqlen, batch=baseline.batch_size, seqlen=baseline.seqlen)
    return replace(lr, warmup=track.reach(position_at(anchor, baseline), "samples", lr.warmup).samples)


def changed_keys(overrides: Overrides, baseline: Baseline) -> tuple[str, ...]:
    """The keys of overrides.json, of `standing` and `once`, that differ from what the run ran with."""
    keys = difference(baseline.standing, overrides.standing)
    once = {} if overrides.once is None else fields_of(overrides.once)
    return (*keys, *(key for key, value in once.items() if key != "id" and value is not None and value is not False))


def _switch_with_value(free: Free) -> str | None:
    """Megatron's parser dies of a value behind a switch. As a sentence; None where there is none."""
    for option in free.options:
        flag, _, value = option.partition("=")
        if value.lower() in ("true", "false"):
            instead = f'options = ["{flag}"]' if value.lower() == "true" else f'remove_options = ["{flag}"]'
            return f"Megatron's parser takes no value for a switch, as in {option}: write {instead}"
    return None


def not_applied(overrides: Overrides, baseline: Baseline, settings: RunSettings, start: StartSeen) -> str | None:
    """The changes that neither the trainer nor its job script applies, as a sentence; None where there are none. What
    the trainer applies is what its hook has declared. None declared is unknown: nothing is refused for it."""
    in_script = start.rewrites_script
    if in_script and (why := _switch_with_value(overrides.standing.free or Free())) is not None:
        return why
    if not in_script and baseline.weight_decay == 0 and (overrides.standing.weight_decay or 0) > 0:
        return "weight decay is set only for parameters that are decayed, and the trainer reports 0 for all of them"
    if settings.applies is None and not in_script:
        return None
    applied = {"skipped", *(start.carries if in_script else ()), *(settings.applies or ())}
    left = [key for key in changed_keys(overrides, baseline) if key not in applied]
    if not left:
        return None
    free = added_words(overrides.standing.free, baseline.free)
    words = ", ".join(word for key in left for word in (free if key == "free" else (f"{words_of(key)} ({key})",)))
    who = settings.trainer or "the trainer"
    if in_script:
        return f"neither {who} nor a changed job script applies {words}"
    return f"{who} does not apply {words}: it would train on as before"
