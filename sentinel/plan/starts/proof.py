"""What a restart was to change against what the attempt shows: confirmed, contradicted or not verified, each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.plan.choose.mitigation import changed_keys
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.events import opened
from sentinel.plan.incident.incident import Proof, Rollback
from sentinel.plan.incident.log_events import Opened
from sentinel.plan.incident.log_outcomes import ChecksShown, NotProved, NotVerified, Proved, RecordedCheck
from sentinel.plan.starts.evidence import CLIPPING, Evidence, SettingFinding, exactly, find, lr_seen, seqlen_seen
from sentinel.vocabulary.codec import document
from sentinel.vocabulary.overrides import Once, Overrides
from sentinel.vocabulary.sample import RunStarted
from sentinel.vocabulary.training_settings import (
    Free,
    TrainingSettings,
    named_settings,
    setting_of,
    settings_of,
    wanted_number,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was to be so."""

    what: str
    expected: Any
    reported: Any  # what was seen; None where nothing was
    changed: bool = True  # by the decision; what stays as it was has to stay so, and need not be shown again
    found: Proof | None = None  # the answer, where equality of the two is not the question
    why: str | None = None  # how that answer was come to, as a phrase

    @property
    def answer(self) -> Proof:
        """Numbers are equal to 1 part in 10^9; what was not seen is not verified."""
        return self.found if self.found is not None else exactly(self.expected, self.reported).answer

    @property
    def recorded(self) -> RecordedCheck:
        """For the incident log."""
        same = {name: getattr(self, name) for name in ("what", "expected", "reported", "changed", "why")}
        return RecordedCheck(**same, answer=self.answer)


def confirmed(what: str) -> Check:
    return Check(what, None, None, found=Proof.CONFIRMED)


def contradicted(fault: str, expected: object, reported: object, why: str) -> Check:
    return Check(fault, expected, reported, found=Proof.CONTRADICTED, why=why)


def silent(what: str, why: str) -> Check:
    return Check(what, None, None, found=Proof.NOT_VERIFIED, why=why)


def outcome(checks: tuple[Check, ...]) -> Proof:
    """Of all checks together: contradicted by one is contradicted; one change not verified is not verified."""
    answers = {check.answer for check in checks if check.changed or check.answer is Proof.CONTRADICTED}
    return next((worst for worst in (Proof.CONTRADICTED, Proof.NOT_VERIFIED) if worst in answers), Proof.CONFIRMED)


def proof_event(rollback: Rollback, attempt: int, checks: tuple[Check, ...]) -> ChecksShown:
    """What the incident log says of the checks of a restart."""
    shown = next(cls for cls in (Proved, NotVerified, NotProved) if cls.found is outcome(checks))
    recorded = tuple(check.recorded for check in checks)
    return shown(incident=rollback.overrides.incident, rollback=rollback.id, attempt=attempt, checks=recorded)


def ignored(number: int, rollback: Rollback, attempt: int, baseline: Baseline, checks: tuple[Check, ...]) -> Opened:
    """An incident of its own: a rollback whose changes did not take effect."""
    wrong = [c for c in checks if c.answer is Proof.CONTRADICTED]
    named = "; ".join(f"{c.what} should be {c.expected!r} and is {c.reported!r}" for c in wrong)
    reason = f"{rollback.id} ({rollback.rung}) did not take effect: {named}"
    return opened(number, attempt, baseline, rollback.overrides, reason=reason, ignored=rollback.id)


def prove(rollback: Rollback, evidence: Evidence, baseline: Baseline | None = None) -> tuple[Check, ...]:
    """Everything that the decision fixes, compared with what the attempt says and shows that it runs with. An attempt
    that was restarted after a crash resumes later than the target: then the settings in effect are checked, and
    that the one-shot changes are still on the record. `baseline` is what the run ran with when the incident began."""
    overrides, started, before = rollback.overrides, evidence.started, baseline or Baseline()
    at_anchor = (started.resumed_from or 0) <= overrides.anchor.global_step
    named = None if started.rollback else Proof.CONTRADICTED
    checks = [Check("rollback", rollback.id, started.rollback, found=named)]
    if at_anchor:
        checks += _position(overrides, started)
    if overrides.once is not None:
        checks += _once(overrides.once, overrides, started, at_anchor=at_anchor)
    checks += _standing(rollback, evidence, frozenset(changed_keys(overrides, before)))
    checks += _free(overrides.standing.free or Free(), before.free or Free(), evidence)
    # a trainer of which the plan said that it keeps no record does not say no by not having one
    silent = [check.what in rollback.unconfirmed and check.reported is False for check in checks]
    return tuple(replace(c, reported=None) if is_silent else c for c, is_silent in zip(checks, silent, strict=True))


def _position(overrides: Overrides, started: RunStarted) -> Iterator[Check]:
    anchor = overrides.anchor
    yield Check("resumed_from", anchor.global_step, started.resumed_from or 0)
    if anchor.consumed_samples is None:
        return
    skipped = overrides.once.skip_samples if overrides.once else None
    first, reported = anchor.consumed_samples + (skipped or 0), started.first_sample_index
    if not overrides.standing.skipped:
        yield Check("first_sample_index", first, reported, changed=skipped is not None)
    else:  # a range that was skipped before may begin just here, and lead further on
        seen = None if reported is None else reported >= first
        yield Check(f"first_sample_index of at least {first}", True, seen, changed=skipped is not None)


def _once(once: Once, overrides: Overrides, started: RunStarted, *, at_anchor: bool) -> Iterator[Check]:
    told = started.applied_once  # that they stand on the record; each change has its own check
    recorded = None if told is None else once.id in told
    yield Check(f"one-shot changes of {once.id}", True, recorded, changed=False)
    if once.seed is not None:
        yield Check("seed", once.seed, started.seed)
    if once.skip_samples is not None:
        yield _skipped(once.skip_samples, overrides, started)
    if once.reset_moments:
        step, resets = overrides.anchor.global_step, started.moments_reset_steps
        yield Check("moments_reset_steps", step, None if resets is None else step if step in resets else list(resets))
    if once.loss_scale is not None and at_anchor:  # later it has gone its own way
        yield Check("loss_scale", once.loss_scale, started.loss_scale)


def _skipped(count: int, overrides: Overrides, started: RunStarted) -> Check:
    begin, told = overrides.anchor.consumed_samples, _ranges(started)
    if told is None or begin is None:
        before = sum(r.end - r.begin for r in overrides.standing.skipped or ())
        return Check("skipped_samples", before + count, started.skipped_samples)
    wanted = [begin, begin + count]
    return Check("skipped_samples", wanted, wanted if wanted in told else told)


def _standing(rollback: Rollback, evidence: Evidence, changed: frozenset[str]) -> Iterator[Check]:
    """Each setting that the decision holds, by the comparison that stands beside it."""
    started, standing = evidence.started, rollback.overrides.standing
    for name, setting in settings_of().items():
        wanted, field, new = getattr(standing, name), setting.reported_as or name, name in changed
        if wanted is None:
            continue
        if setting.proof == "number":
            yield _check(field, find(name, float(wanted), evidence), float(wanted), new)
        elif setting.proof == "exact":
            yield Check(field, document(wanted), getattr(started, field), new)
        elif setting.proof == "schedule":
            seen = lr_seen if name == "lr" else seqlen_seen
            for what, found in seen(wanted, evidence, in_script=rollback.in_script, changed=new):
                yield _check(what, found, found.expected, new)
    if standing.total_tokens is not None:
        by_steps = started.total_steps is not None and not rollback.in_script  # Megatron ends by the first of both
        told = None if by_steps else started.total_tokens
        yield Check("total_tokens", standing.total_tokens, told, "total_tokens" in changed)
    if standing.skipped:
        ranges, kept = [[r.begin, r.end] for r in standing.skipped], _ranges(started)
        kept = None if kept is None else [r for r in ranges if r in kept]
        yield Check("ranges skipped earlier", ranges, kept, "skipped" in changed)


def _check(what: str, found: SettingFinding, expected: Any, changed: bool) -> Check:
    return Check(what, expected, found.seen, changed, found.answer, found.why)


def _free(free: Free, before: Free, evidence: Evidence) -> Iterator[Check]:
    """An option that names a known setting is looked for in what was measured; the rest has to be echoed."""
    if free == Free():
        return
    for setting, flag, value in named_settings(_added(free, before)):
        if (wanted := wanted_number(value)) is None:
            yield Check(f"{flag} ({setting})", value, None, why="its value is no number")
        else:
            yield _check(f"{flag} ({setting})", find(setting, wanted, evidence), wanted, changed=True)
    echoed, others = evidence.started.free, _has_unknown(free, before)
    if others or echoed is not None:
        yield Check("free", free.to_json(), echoed, changed=others)


def _ranges(started: RunStarted) -> list[list[Any]] | None:
    told = started.skipped_ranges
    return None if told is None else [[r.get("begin"), r.get("end")] for r in told]


_NUMBERS = frozenset(name for name, setting in settings_of().items() if setting.proof == "number")
_ARGUMENT = "the trainer's argument is known, and a checkpoint can bring the old value back"
_NEVER = "the trainer has never reported the one that it runs with"


def unreported(overrides: Overrides, baseline: Baseline) -> Mapping[str, str]:
    """What will not be confirmed, going by what the trainer has reported so far: a check's `what` -> a sentence."""
    once, standing = overrides.once or Once(id=overrides.rollback), overrides.standing
    changed = changed_keys(overrides, baseline)
    by_trainer: dict[str, Any] = dict.fromkeys(baseline.by_script)
    baseline = replace(baseline, **by_trainer)
    said = dict(_unreported_once(once, standing, baseline))
    for name, setting in settings_of().items():
        field, known = setting.reported_as or name, getattr(baseline, name)
        if setting.proof is None or getattr(standing, name) is None:
            continue
        if known is None and not (name == "seqlen" and baseline.full_seqlen is not None):
            said[field] = f"{setting.words}: {_NEVER}"
        elif setting.proof == "number" and name in changed and name in baseline.from_arguments:
            said[field] = f"{setting.words}: only {_ARGUMENT}"
    for name, flag, _ in named_settings(_added(standing.free or Free(), baseline.free or Free())):
        if name in _NUMBERS and (getattr(baseline, name) is None or name in baseline.from_arguments):
            said[f"{flag} ({name})"] = f"{flag}: {_NEVER if getattr(baseline, name) is None else _ARGUMENT}"
    for schedule, first in (("lr_schedule", "lr of the first step"), ("seqlen_schedule", "seqlen of the first step")):
        if schedule in said:
            said[first] = said[schedule]
    for what in said:
        if what == "gradient_clipping" or what.endswith(" (clip_grad)"):
            named, _, why = said[what].partition(": ")
            said[what] = f"{named}: {CLIPPING}; {why}"
    return said


def _unreported_once(once: Once, standing: TrainingSettings, baseline: Baseline) -> Iterator[tuple[str, str]]:
    if once.seed is not None and baseline.seed is None:
        yield "seed", f"the new seed: {_NEVER}"
    if once.skip_samples is not None and baseline.skipped is None:
        yield "skipped_samples", "the skipped samples: the trainer has never reported how many it has skipped"
    if once.reset_moments and baseline.moments_reset_steps is None:
        why = "the reset of Adam's moments: the trainer has never reported when it has reset them"
        yield "moments_reset_steps", why
    if once.loss_scale is not None and baseline.precision is None:
        yield "loss_scale", f"the loss scale: {_NEVER}"
    if baseline.free is None and _has_unknown(standing.free or Free(), Free()):
        yield "free", "the free-form changes: the trainer has never echoed any"


def _added(free: Free, before: Free) -> list[str]:
    return [option for option in free.options if option not in before.options]


def _has_unknown(now: Free, before: Free) -> bool:
    """Whether a free-form change is there that only the trainer's echo can confirm."""
    if any(setting_of(option.partition("=")[0]) is None for option in _added(now, before)):
        return True
    return dict(now.environment) != dict(before.environment) or set(now.removed) != set(before.removed)
