"""What a rung changes at a restart: from what the run ran with to what the trainer is to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sentinel.plan.baseline import Baseline
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
from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, Standing
from sentinel.vocabulary.pacing import LrSchedule

__all__ = ["changes", "overrides_for", "plain_overrides"]


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
    if rung.wait_steps is not None or rung.page:
        raise ConfigError(f"rung {rung.name!r} starts nothing: there is nothing to apply at a restart")
    once = Once(
        id=rollback,
        seed=new_seed if rung.reseed else None,
        skip_samples=_skip_samples(rung, anchor, onset_past),
        reset_moments=rung.reset_moments and anchor.global_step > 0,  # from scratch there are none to reset
        loss_scale=_loss_scale(rung, baseline),
    )
    standing = with_seqlen_of(rung, replace(_as_it_was(baseline), lr=lr_for(rung, baseline, anchor)), baseline, anchor)
    standing = replace(
        standing,
        batch_size=batch_size_for(rung, standing.batch_size, baseline, anchor),
        random_ltd=random_ltd_for(rung, baseline, anchor),
        curriculum=curriculum_for(rung, baseline, anchor),
        clip_grad=_clip_grad(rung, baseline),
        free=_free(rung, baseline),
    )
    for key in ("adam_beta1", "adam_beta2", "weight_decay"):
        if (value := getattr(rung, key)) is not None:
            standing = replace(standing, **{key: value})
    return Overrides(
        incident=incident,
        rollback=rollback,
        anchor=anchor,
        standing=standing,
        once=None if once == Once(id=rollback) else once,
    )


def plain_overrides(baseline: Baseline, *, incident: str, rollback: str, anchor: Anchor) -> Overrides:
    """A rollback that changes nothing but the checkpoint: the run's own settings hold, named so that it is seen."""
    return Overrides(incident=incident, rollback=rollback, anchor=anchor, standing=_as_it_was(baseline))


def _as_it_was(baseline: Baseline) -> Standing:
    """What the run ran with, so that nothing an earlier incident changed is lost when overrides.json is replaced."""
    return Standing(
        lr=baseline.lr,
        seqlen=baseline.seqlen,
        shorten=baseline.shorten,
        total_tokens=baseline.total_tokens if baseline.total_steps is None else None,
        batch_size=baseline.batch_size,
        random_ltd=baseline.random_ltd,
        curriculum=baseline.curriculum,
        adam_beta1=baseline.adam_beta1,
        adam_beta2=baseline.adam_beta2,
        weight_decay=baseline.weight_decay,
        clip_grad=baseline.clip_grad,
        skipped=baseline.skipped or (),
        free=baseline.free if baseline.free != Free() else None,
    )


def changes(overrides: Overrides, baseline: Baseline) -> tuple[str, ...]:
    """What is changed, each as a phrase that a person reads."""
    said = []
    once, standing = overrides.once, overrides.standing
    if once is not None and once.skip_samples is not None:
        begin = overrides.anchor.consumed_samples
        where = "" if begin is None else f": {begin} to {begin + once.skip_samples - 1}"
        said.append(f"{once.skip_samples} samples of the data skipped{where}")
    if once is not None and once.seed is not None:
        said.append(f"seed {baseline.seed} -> {once.seed} for the data not yet consumed")
    if once is not None and once.reset_moments:
        said.append("Adam's moments and step count set to 0, once")
    if once is not None and once.loss_scale is not None:
        said.append(f"loss scale set to {once.loss_scale:g}, once")
    lr = standing.lr
    if lr is not None and baseline.lr is not None:
        if lr.peak != baseline.lr.peak:
            said.append(f"peak lr {baseline.lr.peak:g} -> {lr.peak:g}")
        if lr.warmup != baseline.lr.warmup or lr.anchor != baseline.lr.anchor:
            said.append(f"LR warmup {baseline.lr.warmup} -> {lr.warmup} {lr.unit} from {lr.anchor}")
            said += _lowered(lr, baseline.lr, overrides.anchor.global_step)
        if lr.decay_unit != baseline.lr.decay_unit:
            said.append(f"LR decay from {lr.decay_start} to {lr.decay_end} {lr.decay_unit}")
    if standing.total_tokens not in (None, baseline.total_tokens):
        said.append(f"the run ends at {standing.total_tokens} tokens")
    said += [
        f"{words} {getattr(standing, key)}"
        for key, words in _PACED_WORDS.items()
        if getattr(standing, key) not in (None, getattr(baseline, key))
    ]
    said += [
        f"{words} {_known(getattr(baseline, key))} -> {getattr(standing, key):g}"
        for key, words in _WORDS.items()
        if getattr(standing, key) != getattr(baseline, key)
    ]
    return (*said, *_free_words(standing.free, baseline.free), *left_as_it_is(standing, baseline))


def _lowered(lr: LrSchedule, before: LrSchedule, step: int) -> Sequence[str]:
    """That a warmup which reaches into the decay is a lower LR as well: the decay stays where it was."""
    last = max(lr.warmup_end, before.warmup_end, step + 1)
    now, planned = lr.largest(step + 1, last), before.largest(step + 1, last)
    if now is None or planned is None or lr.peak != before.peak or now[0] > 0.99 * planned[0]:
        return ()
    return (f"with it the largest LR to come {planned[0]:.3g} -> {now[0]:.3g}, at step {now[1]}: the decay goes on",)


_PACED_WORDS = {
    "seqlen": "seqlen",
    "shorten": "batches shortened by",
    "batch_size": "global batch",
    "random_ltd": "random-LTD keeps",
    "curriculum": "data paced by",
}
"""Key of Standing and Baseline -> what a person calls it."""

_WORDS = {
    "adam_beta1": "Adam's beta1",
    "adam_beta2": "Adam's beta2",
    "weight_decay": "weight decay",
    "clip_grad": "gradient clipping",
}
"""Key of Standing and Baseline -> what a person calls it."""


def _known(value: float | None) -> str:
    return "(not reported)" if value is None else f"{value:g}"


def _free_words(now: Free | None, before: Free | None) -> Sequence[str]:
    now, before = now or Free(), before or Free()
    added = [f"{name}={value}" for name, value in now.environment.items() if before.environment.get(name) != value]
    removed = [f"{flag} removed" for flag in now.removed if flag not in before.removed]
    return [*added, *(option for option in now.options if option not in before.options), *removed]


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
        raise ConfigError(
            f"rung {rung.name!r} sets the loss scale, which only fp16 has; the run is {baseline.precision}"
        )
    return rung.loss_scale


def _clip_grad(rung: Rung, baseline: Baseline) -> float | None:
    if rung.clip_grad_factor is None:
        return rung.clip_grad if rung.clip_grad is not None else baseline.clip_grad
    if not baseline.clip_grad:
        why = "the trainer has not reported its own" if baseline.clip_grad is None else "the run does not clip"
        raise ConfigError(f"rung {rung.name!r} multiplies the gradient clipping, and {why}: give clip_grad")
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
