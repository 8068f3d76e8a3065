"""What a restart was to change against what the attempt reports: the proof that the mitigation took effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sentinel.plan.baseline import Baseline
from sentinel.plan.incident import Rollback
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, Standing
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import RunStarted

__all__ = ["Check", "prove", "unreported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was to be so."""

    what: str
    expected: Any
    reported: Any
    """None when the trainer did not say."""

    unconfirmable: bool = False
    """Whether the plan said beforehand that this trainer reports no such thing."""

    @property
    def holds(self) -> bool:
        """Whether the report equals the expectation (numbers to 1 part in 10^9), or was known not to come."""
        if self.reported is None and self.unconfirmable:
            return True
        if isinstance(self.expected, float) and isinstance(self.reported, int | float):
            return abs(self.expected - self.reported) <= 1e-9 * max(abs(self.expected), abs(self.reported))
        return bool(self.expected == self.reported)

    def to_json(self) -> dict[str, Any]:
        """The check with its answer, for the incident log."""
        return asdict(self) | {"holds": self.holds}


def prove(rollback: Rollback, started: RunStarted) -> tuple[Check, ...]:
    """Everything that the decision fixes, compared with what the attempt says that it runs with.

    An attempt that was restarted after a crash resumes later than the target: then what is checked is what stands, and
    that the one-shot changes are still on the record. Silence is a no, but where the plan said that it would be silent.
    """
    overrides = rollback.overrides
    at_anchor = (started.resumed_from or 0) <= overrides.anchor.global_step
    checks = [Check(what="rollback", expected=rollback.id, reported=started.rollback)]
    if at_anchor:
        checks += _position(overrides, started)
    if overrides.once is not None:
        checks += _once(overrides.once, overrides, started, at_anchor=at_anchor)
    checks += _schedules(overrides.standing, started)
    checks += _end(overrides.standing, started)
    checks += _settings(overrides.standing, started)
    return tuple(_with_silence(check, rollback) for check in checks)


def _with_silence(check: Check, rollback: Rollback) -> Check:
    """A trainer of which the plan said that it keeps no record does not say no by not having one."""
    if check.what not in rollback.unconfirmed:
        return check
    return replace(check, unconfirmable=True, reported=None if check.reported is False else check.reported)


def _position(overrides: Overrides, started: RunStarted) -> Iterator[Check]:
    anchor: Anchor = overrides.anchor
    yield Check(what="resumed_from", expected=anchor.global_step, reported=started.resumed_from or 0)
    if anchor.consumed_samples is None:
        return
    skipped = overrides.once.skip_samples if overrides.once else None
    first, reported = anchor.consumed_samples + (skipped or 0), started.first_sample_index
    if not overrides.standing.skipped:
        yield Check(what="first_sample_index", expected=first, reported=reported)
    else:  # a range that was skipped before may begin just here, and lead further on
        reached = None if reported is None else reported >= first
        yield Check(what=f"first_sample_index of at least {first}", expected=True, reported=reached)


def _once(once: Once, overrides: Overrides, started: RunStarted, *, at_anchor: bool) -> Iterator[Check]:
    yield Check(what=f"one-shot changes of {once.id}", expected=True, reported=once.id in started.applied_once)
    if once.seed is not None:
        yield Check(what="seed", expected=once.seed, reported=started.seed)
    if once.skip_samples is not None:
        yield _skipped(once.skip_samples, overrides, started)
    if once.reset_moments:
        step, told = overrides.anchor.global_step, started.moments_reset_steps
        found = None if told is None else step if step in told else list(told)
        yield Check(what="moments_reset_steps", expected=step, reported=found)
    if once.loss_scale is not None and at_anchor:  # later it has gone its own way
        yield Check(what="loss_scale", expected=once.loss_scale, reported=started.loss_scale)


def _skipped(count: int, overrides: Overrides, started: RunStarted) -> Check:
    begin, told = overrides.anchor.consumed_samples, _ranges(started)
    if told is None or begin is None:
        before = sum(r.end - r.begin for r in overrides.standing.skipped)
        return Check(what="skipped_samples", expected=before + count, reported=started.skipped_samples)
    wanted = [begin, begin + count]
    return Check(what="skipped_samples", expected=wanted, reported=wanted if wanted in told else told)


def _schedules(standing: Standing, started: RunStarted) -> Iterator[Check]:
    step, lr, seqlen = (started.resumed_from or 0) + 1, standing.lr, standing.seqlen
    if lr is not None:
        yield Check(what="lr_schedule", expected=lr.to_json(), reported=started.lr_schedule)
        yield Check(what="lr of the first step", expected=_first_lr(lr, step, started), reported=started.lr)
    if seqlen is not None:
        yield Check(what="seqlen_schedule", expected=seqlen.to_json(), reported=started.seqlen_schedule)
        if (first_length := seqlen.foreseen(step)) is not None:
            yield Check(what="seqlen of the first step", expected=first_length, reported=started.seqlen)
    for key, field in _ALSO_PACED.items():
        if (schedule := getattr(standing, key)) is not None:
            wanted = schedule if isinstance(schedule, str) else schedule.to_json()
            yield Check(what=field, expected=wanted, reported=getattr(started, field))


def _first_lr(lr: LrSchedule, step: int, started: RunStarted) -> float:
    """Where it counts tokens, by those that random-LTD has left of the consumed ones, if the trainer tells them."""
    effective = started.effective_tokens
    tokens = started.consumed_tokens if effective is None else effective
    return lr.lr(step=step, consumed_tokens=tokens or 0)


_ALSO_PACED = {
    "shorten": "seqlen_shortening",
    "batch_size": "batch_size_schedule",
    "random_ltd": "random_ltd_schedule",
    "curriculum": "curriculum_schedule",
}
"""Field of Standing -> field of RunStarted."""

_REPORTED_AS = {
    "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2",
    "weight_decay": "weight_decay",
    "clip_grad": "gradient_clipping",
}
"""Field of Standing -> field of RunStarted."""


def _end(standing: Standing, started: RunStarted) -> Iterator[Check]:
    if standing.total_tokens is not None:
        told = None if started.total_steps is not None else started.total_tokens
        yield Check(what="total_tokens", expected=standing.total_tokens, reported=told)


def _settings(standing: Standing, started: RunStarted) -> Iterator[Check]:
    for key, field in _REPORTED_AS.items():
        if (wanted := getattr(standing, key)) is not None:
            yield Check(what=field, expected=float(wanted), reported=getattr(started, field))
    if standing.skipped:
        wanted, told = [[r.begin, r.end] for r in standing.skipped], _ranges(started)
        kept = None if told is None else [r for r in wanted if r in told]
        yield Check(what="ranges skipped earlier", expected=wanted, reported=kept)
    if standing.free is not None:
        yield Check(what="free", expected=standing.free.to_json(), reported=started.free)


def _ranges(started: RunStarted) -> list[list[Any]] | None:
    told = started.skipped_ranges
    return None if told is None else [[r.get("begin"), r.get("end")] for r in told]


def unreported(overrides: Overrides, baseline: Baseline) -> Mapping[str, str]:
    """What will not be confirmed, going by what the trainer has reported so far: a check's `what` -> a sentence."""
    once, standing = overrides.once or Once(id=overrides.rollback), overrides.standing
    never = "the trainer has never reported the one that it runs with"
    silent = {
        "seed": (once.seed is not None and baseline.seed is None, f"the new seed: {never}"),
        "lr_schedule": (standing.lr is not None and baseline.lr is None, f"the LR schedule: {never}"),
        "seqlen_schedule": (
            standing.seqlen is not None and baseline.seqlen is None and baseline.full_seqlen is None,
            f"the sequence length: {never}",
        ),
        "skipped_samples": (
            once.skip_samples is not None and baseline.skipped is None,
            "the skipped samples: the trainer has never reported how many it has skipped",
        ),
        "moments_reset_steps": (
            once.reset_moments and baseline.moments_reset_steps is None,
            "the reset of Adam's moments: the trainer has never reported when it has reset them",
        ),
        "loss_scale": (once.loss_scale is not None and baseline.precision is None, f"the loss scale: {never}"),
        "free": (
            standing.free is not None and baseline.free is None,
            "the free-form changes: the trainer has never echoed any",
        ),
    } | {
        field: (getattr(standing, key) is not None and getattr(baseline, key) is None, f"{field}: {never}")
        for key, field in (_ALSO_PACED | _REPORTED_AS).items()
    }
    said = {what: sentence for what, (is_silent, sentence) in silent.items() if is_silent}
    for schedule, first in (("lr_schedule", "lr of the first step"), ("seqlen_schedule", "seqlen of the first step")):
        if schedule in said:
            said[first] = said[schedule]
    return said
