"""What a restart was to change against what the attempt shows: confirmed, contradicted or not verified, each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sentinel.plan.applicability import changed_keys
from sentinel.plan.baseline import Baseline
from sentinel.plan.evidence import Evidence, find
from sentinel.plan.first_steps import of_first_steps
from sentinel.plan.incident import Rollback
from sentinel.plan.known_options import named_settings, setting_of, wanted_number
from sentinel.plan.proof_value import Proof
from sentinel.vocabulary.overrides import Anchor, Once, Overrides
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import RunStarted
from sentinel.vocabulary.training_settings import Free, TrainingSettings

__all__ = ["Check", "outcome", "prove", "unreported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was to be so."""

    what: str
    expected: Any
    reported: Any
    """What was seen; None where nothing was."""

    changed: bool = True
    """Whether the decision changes it. What stays as it was has to stay so, and need not be shown again."""

    found: Proof | None = None
    """The answer, where equality of the two is not the question."""

    why: str | None = None
    """How that answer was come to, as a phrase."""

    @property
    def answer(self) -> Proof:
        """Numbers are equal to 1 part in 10^9; what was not seen is not verified."""
        if self.found is not None:
            return self.found
        if self.reported is None:
            return Proof.NOT_VERIFIED
        equal = self.expected == self.reported
        if isinstance(self.expected, float) and isinstance(self.reported, int | float):
            equal = abs(self.expected - self.reported) <= 1e-9 * max(abs(self.expected), abs(self.reported))
        return Proof.CONFIRMED if equal else Proof.CONTRADICTED

    def to_json(self) -> dict[str, Any]:
        """The check with its answer, for the incident log."""
        told = asdict(self) | {"answer": str(self.answer)}
        del told["found"]
        return told


def outcome(checks: tuple[Check, ...]) -> Proof:
    """Of all checks together: contradicted by one is contradicted; one change not verified is not verified."""
    answers = {check.answer for check in checks if check.changed or check.answer is Proof.CONTRADICTED}
    for worst in (Proof.CONTRADICTED, Proof.NOT_VERIFIED):
        if worst in answers:
            return worst
    return Proof.CONFIRMED


def prove(rollback: Rollback, evidence: Evidence, baseline: Baseline | None = None) -> tuple[Check, ...]:
    """Everything that the decision fixes, compared with what the attempt says and shows that it runs with.

    An attempt that was restarted after a crash resumes later than the target: then what is checked is what stands, and
    that the one-shot changes are still on the record. `baseline` is what the run ran with when the incident began.
    """
    overrides, started = rollback.overrides, evidence.started
    changed = frozenset(changed_keys(overrides, baseline or Baseline()))
    at_anchor = (started.resumed_from or 0) <= overrides.anchor.global_step
    named = Check(what="rollback", expected=rollback.id, reported=started.rollback)
    checks = [replace(named, found=None if started.rollback else Proof.CONTRADICTED)]
    if at_anchor:
        checks += _position(overrides, started)
    if overrides.once is not None:
        checks += _once(overrides.once, overrides, started, at_anchor=at_anchor)
    standing = overrides.standing
    of_standing = [*_schedules(standing, evidence, rollback, changed), *_settings(standing, evidence)]
    checks += [replace(check, changed=key in changed) for key, check in of_standing]
    checks += _free(standing.free or Free(), (baseline or Baseline()).free or Free(), evidence)
    return tuple(_with_silence(check, rollback) for check in checks)


def _with_silence(check: Check, rollback: Rollback) -> Check:
    """A trainer of which the plan said that it keeps no record does not say no by not having one."""
    silent = check.what in rollback.unconfirmed and check.reported is False
    return replace(check, reported=None) if silent else check


def _position(overrides: Overrides, started: RunStarted) -> Iterator[Check]:
    anchor: Anchor = overrides.anchor
    yield Check(what="resumed_from", expected=anchor.global_step, reported=started.resumed_from or 0)
    if anchor.consumed_samples is None:
        return
    skipped = overrides.once.skip_samples if overrides.once else None
    first, reported = anchor.consumed_samples + (skipped or 0), started.first_sample_index
    if not overrides.standing.skipped:
        what, expected, seen = "first_sample_index", first, reported
    else:  # a range that was skipped before may begin just here, and lead further on
        what, expected = f"first_sample_index of at least {first}", True
        seen = None if reported is None else reported >= first
    yield Check(what=what, expected=expected, reported=seen, changed=skipped is not None)


def _once(once: Once, overrides: Overrides, started: RunStarted, *, at_anchor: bool) -> Iterator[Check]:
    recorded = once.id in started.applied_once  # that they stand on the record; each change has its own check
    yield Check(what=f"one-shot changes of {once.id}", expected=True, reported=recorded, changed=False)
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
        before = sum(r.end - r.begin for r in overrides.standing.skipped or ())
        return Check(what="skipped_samples", expected=before + count, reported=started.skipped_samples)
    wanted = [begin, begin + count]
    return Check(what="skipped_samples", expected=wanted, reported=wanted if wanted in told else told)


def _schedules(
    standing: TrainingSettings, evidence: Evidence, rollback: Rollback, changed: frozenset[str]
) -> Iterator[tuple[str, Check]]:
    """(key of TrainingSettings, its check)."""
    started, lr, seqlen = evidence.started, standing.lr, standing.seqlen
    step = (started.resumed_from or 0) + 1
    if lr is not None and not rollback.in_script:
        yield "lr", _lr_schedule(lr, evidence)
        yield "lr", Check(what="lr of the first step", expected=_first_lr(lr, step, started), reported=started.lr)
    if seqlen is not None and not rollback.in_script:
        yield "seqlen", Check(what="seqlen_schedule", expected=seqlen.to_json(), reported=started.seqlen_schedule)
        if (first_length := seqlen.foreseen(step)) is not None:
            yield "seqlen", Check(what="seqlen of the first step", expected=first_length, reported=started.seqlen)
    for key, what, found in of_first_steps(standing, evidence, changed, in_script=rollback.in_script):
        yield key, Check(what=what, expected=found.expected, reported=found.seen, found=found.answer, why=found.why)
    for key, field in _ALSO_PACED.items():
        if (schedule := getattr(standing, key)) is not None:
            wanted = schedule if isinstance(schedule, str) else schedule.to_json()
            yield key, Check(what=field, expected=wanted, reported=getattr(started, field))
    if standing.total_tokens is not None:
        told = None if started.total_steps is not None else started.total_tokens
        yield "total_tokens", Check(what="total_tokens", expected=standing.total_tokens, reported=told)


def _lr_schedule(lr: LrSchedule, evidence: Evidence) -> Check:
    """As the trainer reports it; what was read from its arguments alone counts beside the lr that its steps show."""
    check = Check(what="lr_schedule", expected=lr.to_json(), reported=evidence.started.lr_schedule)
    asked_for = evidence.reported("lr_schedule") is None and not dict(evidence.learning_rates())
    silent = asked_for and check.answer is Proof.CONFIRMED
    return replace(check, found=Proof.NOT_VERIFIED) if silent else check


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
"""Field of TrainingSettings -> field of RunStarted."""

_REPORTED_AS = {
    "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2",
    "weight_decay": "weight_decay",
    "clip_grad": "gradient_clipping",
}
"""Field of TrainingSettings -> field of RunStarted."""


def _settings(standing: TrainingSettings, evidence: Evidence) -> Iterator[tuple[str, Check]]:
    for key, field in _REPORTED_AS.items():
        if (wanted := getattr(standing, key)) is not None:
            found = find(key, float(wanted), evidence)
            yield (
                key,
                Check(what=field, expected=float(wanted), reported=found.seen, found=found.answer, why=found.why),
            )
    if standing.skipped:
        wanted, told = [[r.begin, r.end] for r in standing.skipped], _ranges(evidence.started)
        kept = None if told is None else [r for r in wanted if r in told]
        yield "skipped", Check(what="ranges skipped earlier", expected=wanted, reported=kept)


def _free(free: Free, before: Free, evidence: Evidence) -> Iterator[Check]:
    """An option that names a known setting is looked for in what was measured; the rest has to be echoed."""
    if free == Free():
        return
    echoed = evidence.started.free
    added = _added(free, before)
    for setting, flag, value in named_settings(added):
        wanted = wanted_number(value)
        if wanted is None:
            yield Check(what=f"{flag} ({setting})", expected=value, reported=None, why="its value is no number")
            continue
        found = find(setting, wanted, evidence)
        yield Check(what=f"{flag} ({setting})", expected=wanted, reported=found.seen, found=found.answer, why=found.why)
    unknown = any(setting_of(option.partition("=")[0]) is None for option in added)
    others = unknown or dict(free.environment) != dict(before.environment) or set(free.removed) != set(before.removed)
    if others or echoed is not None:
        yield Check(what="free", expected=free.to_json(), reported=echoed, changed=others)


def _ranges(started: RunStarted) -> list[list[Any]] | None:
    told = started.skipped_ranges
    return None if told is None else [[r.get("begin"), r.get("end")] for r in told]


def unreported(overrides: Overrides, baseline: Baseline) -> Mapping[str, str]:
    """What will not be confirmed, going by what the trainer has reported so far: a check's `what` -> a sentence."""
    once, standing = overrides.once or Once(id=overrides.rollback), overrides.standing
    changed = changed_keys(overrides, baseline)
    baseline = baseline.without_script()
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
            _has_unknown(standing.free, baseline.free) and baseline.free is None,
            "the free-form changes: the trainer has never echoed any",
        ),
    } | {
        field: (getattr(standing, key) is not None and getattr(baseline, key) is None, f"{field}: {never}")
        for key, field in (_ALSO_PACED | _REPORTED_AS).items()
    }
    said = {what: sentence for what, (is_silent, sentence) in silent.items() if is_silent}
    for key, field in _REPORTED_AS.items():
        if key in changed and getattr(standing, key) is not None and key in baseline.from_arguments:
            said[field] = f"{field}: only {_ARGUMENT}"
    for setting, flag, _ in named_settings(_added(standing.free, baseline.free)):
        if setting in _REPORTED_AS and (getattr(baseline, setting) is None or setting in baseline.from_arguments):
            said[f"{flag} ({setting})"] = f"{flag}: {never if getattr(baseline, setting) is None else _ARGUMENT}"
    for schedule, first in (("lr_schedule", "lr of the first step"), ("seqlen_schedule", "seqlen of the first step")):
        if schedule in said:
            said[first] = said[schedule]
    return said


_ARGUMENT = "the trainer's argument is known, and a checkpoint can bring the old value back"


def _added(free: Free | None, before: Free | None) -> list[str]:
    """The options that are new."""
    return [option for option in (free or Free()).options if option not in (before or Free()).options]


def _has_unknown(free: Free | None, before: Free | None) -> bool:
    """Whether a free-form change is there that only the trainer's echo can confirm."""
    now, old = free or Free(), before or Free()
    unnamed = [o for o in _added(free, before) if setting_of(o.partition("=")[0]) is None]
    return bool(unnamed) or dict(now.environment) != dict(old.environment) or set(now.removed) != set(old.removed)
