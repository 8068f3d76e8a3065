"""What shows whether a setting or a schedule is in force: the start report, the trainer's arguments, first steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.plan.incident.incident import Proof
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from sentinel.vocabulary.sample import RunStarted, Sample
from sentinel.vocabulary.training_settings import argument, settings_of

FIRST_STEPS = 3  # steps of a new attempt that the proof of its changes waits for

# DeepSpeed, Megatron and Hugging Face log the gradient's norm from before it is clipped: it exceeds any limit
CLIPPING = "clipping can be confirmed only by the trainer's own start report, samples cannot show it"
_WARMUP = ("peak", "warmup", "unit", "anchor")  # of an LR schedule: what Megatron's schedulers say and a rung changes
PRINTED = 1e-3  # logs print a learning rate to four digits: a reading may be wrong by this part of itself

_REPORTED_AS = {  # setting -> field of RunStarted
    **{name: setting.reported_as or name for name, setting in settings_of().items() if setting.proof == "number"},
    "seed": "seed",
    "total_steps": "total_steps",
}

# Settings that loading a checkpoint replaces: that they were passed does not show that they are in force. DeepSpeed
# loads the optimizer's groups, the loss scale and (ZeRO 1 and 2, fused Adam) the clipping; Hugging Face's Trainer and
# Megatron load the LR scheduler.
_RESTORED = {"min_lr", "lr_warmup_steps", *(name for name, setting in settings_of().items() if setting.restored)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a new attempt has shown so far, and what the run showed before the change."""

    started: RunStarted
    samples: tuple[Sample, ...] = ()  # the attempt's first steps, in order
    before: RunStarted | None = None  # the start report of the attempt that diverged; None where it has none
    lr_before: Mapping[int, float] = field(default_factory=dict)  # global_step -> lr of that step before the rollback

    def reported(self, name: str) -> Any:
        """The start report's field; None where it was read from the trainer's arguments alone. A checkpoint brings back
        the optimizer's settings: an argument shows what was asked for, not what is in force."""
        return None if name in (self.started.from_arguments or ()) else getattr(self.started, name)

    def learning_rates(self) -> dict[int, float]:
        """global_step -> lr of the first steps, as far as the trainer reports them."""
        return {s.global_step: s.lr for s in self.samples if s.lr is not None and math.isfinite(s.lr)}

    def same_steps(self) -> list[tuple[float, float]]:
        """(lr now, lr before) of the first steps that the run made before, too."""
        rates = self.learning_rates().items()
        return [(lr, self.lr_before[step]) for step, lr in rates if self.lr_before.get(step)]


@dataclass(frozen=True, slots=True)
class SettingFinding:
    """Whether a setting has the value that it was to have."""

    answer: Proof
    seen: Any = None  # what was seen instead, or in confirmation; None where nothing was
    why: str | None = None  # how the answer was come to, as a phrase, where `seen` does not tell
    expected: Any = None  # what should have been seen, where that is told


def find(setting: str, wanted: float, evidence: Evidence) -> SettingFinding:
    """Whether the setting is in force with the wanted value: by what was measured, else by the trainer's arguments."""
    found = _measured(setting, wanted, evidence)
    if found.answer is not Proof.NOT_VERIFIED:
        return found
    passed = argument(setting, evidence.started.settings)
    if passed is None and setting in _REPORTED_AS:
        passed = getattr(evidence.started, _REPORTED_AS[setting])
    if passed is None:
        return found
    if not same(passed, wanted):
        return SettingFinding(Proof.CONTRADICTED, passed, "the trainer's own arguments")
    if setting in _RESTORED:
        why = "the trainer's arguments show it, and a checkpoint can bring the old value back"
        return SettingFinding(Proof.NOT_VERIFIED, found.seen, found.why or why)
    return SettingFinding(Proof.CONFIRMED, passed)


def same(one: float, other: float, tolerance: float = 1e-9) -> bool:
    return math.isclose(one, other, rel_tol=tolerance)


def _measured(setting: str, wanted: float, evidence: Evidence) -> SettingFinding:
    match setting:
        case "lr":
            return _lr(wanted, evidence)
        case "min_lr":
            return exactly(wanted, (evidence.reported("lr_schedule") or {}).get("minimum"))
        case "lr_warmup_steps":
            return _lr_warmup(wanted, evidence)
        case "clip_grad":
            found = exactly(wanted, evidence.reported("gradient_clipping"))
            return replace(found, why=CLIPPING) if found.answer is Proof.NOT_VERIFIED else found
        case "loss_scale":  # an overflow may have lowered it since the start, and it rises only after hundreds of steps
            told = evidence.reported("loss_scale")
            return _at_most(wanted, [s.loss_scale for s in evidence.samples]) if told is None else exactly(wanted, told)
        case "seqlen":
            return _at_most(wanted, [s.seqlen for s in evidence.samples])
        case "global_batch":
            return _at_most(wanted, [s.global_batch_samples for s in evidence.samples])
    return exactly(wanted, evidence.reported(_REPORTED_AS[setting]) if setting in _REPORTED_AS else None)


def _at_most(wanted: float, values: Iterable[float | None]) -> SettingFinding:
    """A quantity of a step that a warmup can lower and nothing can raise."""
    highest = max((value for value in values if value is not None), default=None)
    if highest is not None and highest < wanted:
        return SettingFinding(Proof.NOT_VERIFIED, highest, "it may warm up")
    return exactly(wanted, highest)


def _lr(wanted: float, evidence: Evidence) -> SettingFinding:
    """The peak of the learning rate. A warmup or a decay only ever lowers it: the ratio to the same steps tells."""
    seen = evidence.learning_rates()
    if not seen:
        return SettingFinding(Proof.NOT_VERIFIED)
    step, highest = max(seen.items(), key=lambda pair: pair[1])
    if all(same(lr, wanted, PRINTED) for lr in seen.values()):
        return SettingFinding(Proof.CONFIRMED, highest)
    if highest > wanted * (1 + PRINTED):
        return SettingFinding(Proof.CONTRADICTED, highest, f"the lr of step {step}")
    pairs, peak = evidence.same_steps(), _peak_before(evidence)
    if pairs and peak is not None and not same(peak, wanted, PRINTED):
        if all(same(now, old, PRINTED) for now, old in pairs):
            return SettingFinding(Proof.CONTRADICTED, highest, "the same steps had the same lr before")
        if all(same(now * peak, old * wanted, 2 * PRINTED) for now, old in pairs):
            return SettingFinding(Proof.CONFIRMED, highest, f"{wanted / peak:g} times the lr of the same steps")
    return SettingFinding(Proof.NOT_VERIFIED, highest, "it may warm up or decay")


def _peak_before(evidence: Evidence) -> float | None:
    if evidence.before is None:
        return None
    peak = (evidence.before.lr_schedule or {}).get("peak", argument("lr", evidence.before.settings))
    return float(peak) if isinstance(peak, int | float) and peak > 0 else None


def _lr_warmup(wanted: float, evidence: Evidence) -> SettingFinding:
    seen = next((s.lr_warmup_steps for s in evidence.samples if s.lr_warmup_steps is not None), None)
    schedule = evidence.reported("lr_schedule") or {}
    if seen is None and schedule.get("unit") == "steps":
        seen = schedule.get("warmup")
    if seen is not None and same(seen, wanted):  # the trainer's arguments, as often as not: see _RESTORED
        return SettingFinding(Proof.NOT_VERIFIED, seen, "no step tells the length of a warmup")
    return exactly(wanted, seen)


def exactly(expected: Any, reported: Any) -> SettingFinding:
    """Equal as JSON holds them, numbers to 1 part in 10^9; what was not reported is not verified."""
    numbers = isinstance(expected, float) and isinstance(reported, int | float)
    equal = same(expected, reported) if numbers else expected == reported
    answer = Proof.NOT_VERIFIED if reported is None else Proof.CONFIRMED if equal else Proof.CONTRADICTED
    return SettingFinding(answer, reported, expected=expected)


Seen = Iterator[tuple[str, SettingFinding]]  # (what is checked, what was found)


def lr_seen(lr: LrSchedule, evidence: Evidence, *, in_script: bool, changed: bool) -> Seen:
    """The LR as it is reported, of the first step, and of the steps that were made. Where the change was written into a
    job script, that trainer performs it in its own form: what is `changed` shows in its steps, and the rest stands
    there as it did."""
    if in_script:
        yield from _lr_of_script(lr, evidence) if changed else ()
        return
    started, reported = evidence.started, exactly(lr.to_json(), evidence.started.lr_schedule)
    only_asked_for = evidence.reported("lr_schedule") is None and not evidence.learning_rates()
    if only_asked_for and reported.answer is Proof.CONFIRMED:
        reported = replace(reported, answer=Proof.NOT_VERIFIED)
    yield "lr_schedule", reported
    # Where it counts tokens, it counts those that random-LTD has left, if the trainer reports them.
    tokens = started.consumed_tokens if started.effective_tokens is None else started.effective_tokens
    first = lr.lr(step=(started.resumed_from or 0) + 1, consumed_tokens=tokens or 0)
    yield "lr of the first step", exactly(first, started.lr)
    if (found := _lr_of_steps(lr, evidence)) is not None:
        yield "lr of the first steps", found


def seqlen_seen(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool, changed: bool) -> Seen:
    started = evidence.started
    if in_script and changed and (reported := evidence.reported("seqlen_schedule")) is not None:
        yield "seqlen_schedule", _same_lengths(seqlen, reported)
    if not in_script:
        yield "seqlen_schedule", exactly(seqlen.to_json(), started.seqlen_schedule)
        if (first := seqlen.foreseen((started.resumed_from or 0) + 1)) is not None:
            yield "seqlen of the first step", exactly(first, started.seqlen)
    if (changed or not in_script) and (found := _lengths(seqlen, evidence, in_script=in_script)) is not None:
        yield "seqlen of the first steps", found


def _lr_of_steps(lr: LrSchedule, evidence: Evidence) -> SettingFinding | None:
    seen = evidence.learning_rates()
    if not seen or not lr.by_steps:
        return None
    for step, value in seen.items():
        if not same(value, lr.lr(step=step), PRINTED):
            return SettingFinding(Proof.CONTRADICTED, value, f"the lr of step {step}", lr.lr(step=step))
    first = min(seen)
    return SettingFinding(Proof.CONFIRMED, seen[first], expected=lr.lr(step=first))


def _same_lengths(seqlen: SeqlenSchedule, reported: Mapping[str, Any]) -> SettingFinding:
    """A script writes a schedule as a staircase: what counts are the lengths of the steps, up to 200 of them."""
    told, first = SeqlenSchedule.from_json(dict(reported)), seqlen.anchor_step + 1
    last = max(first, seqlen.end_step or first) + 1
    for step in {*range(first, last, max(1, (last - first) // 200)), last}:
        wanted, seen = seqlen.foreseen(step), told.foreseen(step)
        if wanted != seen:
            return SettingFinding(Proof.CONTRADICTED, seen, f"the length that is planned for step {step}", wanted)
    return SettingFinding(Proof.CONFIRMED, dict(reported), expected=seqlen.to_json())


def _lr_of_script(lr: LrSchedule, evidence: Evidence) -> Seen:
    """The trainer's own scheduler, where the trainer reports it; and the steps: what counts is that the same steps have
    another lr than before, and none lies above the peak."""
    reported = evidence.reported("lr_schedule")
    if reported is not None:
        wanted, told = ({name: each.get(name) for name in _WARMUP} for each in (lr.to_json(), reported))
        yield "lr_schedule", exactly(wanted, told)
    what, another, pairs = "lr of the first steps", "another lr than before", evidence.same_steps()
    highest = max(evidence.learning_rates().values(), default=None)
    if highest is not None and highest > lr.peak * (1 + PRINTED):
        yield what, SettingFinding(Proof.CONTRADICTED, highest, expected=f"at most {lr.peak:g}")
    elif not pairs and (reported is None or highest is None):
        yield what, SettingFinding(Proof.NOT_VERIFIED, highest, expected=another)
    elif pairs and all(same(now, old, PRINTED) for now, old in pairs):
        yield what, SettingFinding(Proof.CONTRADICTED, highest, "the same steps had the same lr before", another)
    else:
        yield what, SettingFinding(Proof.CONFIRMED, highest, expected=another)


def _lengths(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool) -> SettingFinding | None:
    """Each step's length, as far as it can be foreseen; where a script performs it, as far as it is a warmup at all."""
    first = None
    for sample in evidence.samples:
        expected, seen = seqlen.foreseen(sample.global_step), sample.seqlen
        first = sample if first is None and seen is not None else first
        if expected is None or seen in (None, expected) or (in_script and seen is not None and seen < seqlen.full):
            continue
        return SettingFinding(Proof.CONTRADICTED, seen, f"the length of step {sample.global_step}", expected)
    if first is not None:
        return SettingFinding(Proof.CONFIRMED, first.seqlen, expected=seqlen.foreseen(first.global_step))
    return SettingFinding(Proof.NOT_VERIFIED, expected=seqlen.to_json()) if in_script else None
