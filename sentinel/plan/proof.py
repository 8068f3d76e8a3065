"""What a restart was to change against what the attempt shows: confirmed, contradicted or not verified, each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sentinel.plan.baseline import Baseline
from sentinel.plan.evidence import (
    CLIPPING,
    PRINTED,
    Evidence,
    Finding,
    find,
    named_settings,
    same,
    setting_of,
    wanted_number,
)
from sentinel.plan.incident import Proof, Rollback
from sentinel.plan.mitigation import changed_keys
from sentinel.vocabulary.codec import document
from sentinel.vocabulary.overrides import Anchor, Once, Overrides
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from sentinel.vocabulary.sample import RunStarted
from sentinel.vocabulary.training_settings import Free, settings_of

Seen = Iterator[tuple[str, Finding]]  # (what is checked, what was found)


def lr_seen(lr: LrSchedule, evidence: Evidence, *, in_script: bool, changed: bool) -> Seen:
    """The LR as it is reported, of the first step, and of the steps that were made.

    Where the change was written into a job script, that trainer performs it in its own form: what is `changed` shows
    in its steps, and the rest stands there as it did.
    """
    started = evidence.started
    if in_script:
        if changed:
            yield "lr of the first steps", _lr_in_script(lr, evidence)
        return
    reported = exactly(lr.to_json(), started.lr_schedule)
    only_asked_for = evidence.reported("lr_schedule") is None and not evidence.learning_rates()
    if only_asked_for and reported.answer is Proof.CONFIRMED:
        reported = Finding(answer=Proof.NOT_VERIFIED, seen=reported.seen, expected=reported.expected)
    yield "lr_schedule", reported
    # Where it counts tokens, it counts those that random-LTD has left, if the trainer reports them.
    tokens = started.consumed_tokens if started.effective_tokens is None else started.effective_tokens
    first = lr.lr(step=(started.resumed_from or 0) + 1, consumed_tokens=tokens or 0)
    yield "lr of the first step", exactly(first, started.lr)
    if (found := _lr_of_steps(lr, evidence)) is not None:
        yield "lr of the first steps", found


def seqlen_seen(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool, changed: bool) -> Seen:
    """The sequence length, likewise."""
    started = evidence.started
    if not in_script:
        yield "seqlen_schedule", exactly(seqlen.to_json(), started.seqlen_schedule)
        if (first := seqlen.foreseen((started.resumed_from or 0) + 1)) is not None:
            yield "seqlen of the first step", exactly(first, started.seqlen)
    if (changed or not in_script) and (found := _lengths(seqlen, evidence, in_script=in_script)) is not None:
        yield "seqlen of the first steps", found


def exactly(expected: object, reported: object) -> Finding:
    """Equal as JSON holds them, numbers to 1 part in 10^9; what was not reported is not verified."""
    if reported is None:
        return Finding(answer=Proof.NOT_VERIFIED, expected=expected)
    equal = expected == reported
    if isinstance(expected, float) and isinstance(reported, int | float):
        equal = same(expected, reported)
    return Finding(answer=Proof.CONFIRMED if equal else Proof.CONTRADICTED, seen=reported, expected=expected)


def _lr_of_steps(lr: LrSchedule, evidence: Evidence) -> Finding | None:
    """Where the schedule counts steps: it gives the learning rate of each."""
    seen = evidence.learning_rates()
    if not seen or {lr.unit, lr.decay_unit or lr.unit} != {"steps"}:
        return None
    for step, value in seen.items():
        if not same(value, lr.lr(step=step), PRINTED):
            why = f"the lr of step {step}"
            return Finding(answer=Proof.CONTRADICTED, expected=lr.lr(step=step), seen=value, why=why)
    first = min(seen)
    return Finding(answer=Proof.CONFIRMED, expected=lr.lr(step=first), seen=seen[first])


def _lr_in_script(lr: LrSchedule, evidence: Evidence) -> Finding:
    """What counts is that the same steps have another lr than before. No lr may lie above the peak."""
    highest = max(evidence.learning_rates().values(), default=None)
    if highest is not None and highest > lr.peak * (1 + PRINTED):
        return Finding(answer=Proof.CONTRADICTED, expected=f"at most {lr.peak:g}", seen=highest)
    pairs, another = evidence.same_steps(), "another lr than before"
    if not pairs:
        return Finding(answer=Proof.NOT_VERIFIED, expected=another, seen=highest)
    if all(same(now, old, PRINTED) for now, old in pairs):
        why = "the same steps had the same lr before"
        return Finding(answer=Proof.CONTRADICTED, expected=another, seen=highest, why=why)
    return Finding(answer=Proof.CONFIRMED, expected=another, seen=highest)


def _lengths(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool) -> Finding | None:
    """Each step's length, as far as it can be foreseen; where a script performs it, as far as it is a warmup at all."""
    first = None
    for sample in evidence.samples:
        expected, seen = seqlen.foreseen(sample.global_step), sample.seqlen
        first = sample if first is None and seen is not None else first
        if expected is None or seen in (None, expected) or (in_script and seen is not None and seen < seqlen.full):
            continue
        why = f"the length of step {sample.global_step}"
        return Finding(answer=Proof.CONTRADICTED, expected=expected, seen=seen, why=why)
    if first is not None:
        return Finding(answer=Proof.CONFIRMED, expected=seqlen.foreseen(first.global_step), seen=first.seqlen)
    return Finding(answer=Proof.NOT_VERIFIED, expected=seqlen.to_json()) if in_script else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was to be so."""

    what: str
    expected: Any
    reported: Any  # what was seen; None where nothing was
    # whether the decision changes it. What stays as it was has to stay so, and need not be shown again.
    changed: bool = True
    found: Proof | None = None  # the answer, where equality of the two is not the question
    why: str | None = None  # how that answer was come to, as a phrase

    @property
    def answer(self) -> Proof:
        """Numbers are equal to 1 part in 10^9; what was not seen is not verified."""
        return self.found if self.found is not None else exactly(self.expected, self.reported).answer

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
    checks += _standing(rollback, evidence, changed)
    checks += _free(overrides.standing.free or Free(), (baseline or Baseline()).free or Free(), evidence)
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
            yield Check(what=field, expected=document(wanted), reported=getattr(started, field), changed=new)
        elif setting.proof == "schedule":
            seen = lr_seen if name == "lr" else seqlen_seen
            for what, found in seen(wanted, evidence, in_script=rollback.in_script, changed=new):
                yield _check(what, found, found.expected, new)
    if standing.total_tokens is not None:
        told = None if started.total_steps is not None else started.total_tokens
        changed_here = "total_tokens" in changed
        yield Check(what="total_tokens", expected=standing.total_tokens, reported=told, changed=changed_here)
    if standing.skipped:
        ranges, kept = [[r.begin, r.end] for r in standing.skipped], _ranges(started)
        kept = None if kept is None else [r for r in ranges if r in kept]
        what = "ranges skipped earlier"
        yield Check(what=what, expected=ranges, reported=kept, changed="skipped" in changed)


def _check(what: str, found: Finding, expected: Any, changed: bool) -> Check:
    return Check(what=what, expected=expected, reported=found.seen, changed=changed, found=found.answer, why=found.why)


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
        yield _check(f"{flag} ({setting})", found, wanted, changed=True)
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
    }
    said = {what: sentence for what, (is_silent, sentence) in silent.items() if is_silent}
    for name, setting in settings_of().items():
        field, known = setting.reported_as or name, getattr(baseline, name)
        if setting.proof is None or getattr(standing, name) is None:
            continue
        if known is None and not (name == "seqlen" and baseline.full_seqlen is not None):
            said[field] = f"{setting.words}: {never}"
        elif setting.proof == "number" and name in changed and name in baseline.from_arguments:
            said[field] = f"{setting.words}: only {_ARGUMENT}"
    for name, flag, _ in named_settings(_added(standing.free, baseline.free)):
        if name in _NUMBERS and (getattr(baseline, name) is None or name in baseline.from_arguments):
            said[f"{flag} ({name})"] = f"{flag}: {never if getattr(baseline, name) is None else _ARGUMENT}"
    for schedule, first in (("lr_schedule", "lr of the first step"), ("seqlen_schedule", "seqlen of the first step")):
        if schedule in said:
            said[first] = said[schedule]
    for what in said:
        if what == "gradient_clipping" or what.endswith(" (clip_grad)"):
            named, _, why = said[what].partition(": ")
            said[what] = f"{named}: {CLIPPING}; {why}"
    return said


_NUMBERS = frozenset(name for name, setting in settings_of().items() if setting.proof == "number")
_ARGUMENT = "the trainer's argument is known, and a checkpoint can bring the old value back"


def _added(free: Free | None, before: Free | None) -> list[str]:
    """The options that are new."""
    return [option for option in (free or Free()).options if option not in (before or Free()).options]


def _has_unknown(free: Free | None, before: Free | None) -> bool:
    """Whether a free-form change is there that only the trainer's echo can confirm."""
    now, old = free or Free(), before or Free()
    unnamed = [o for o in _added(free, before) if setting_of(o.partition("=")[0]) is None]
    return bool(unnamed) or dict(now.environment) != dict(old.environment) or set(now.removed) != set(old.removed)
