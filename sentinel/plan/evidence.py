"""What shows whether a setting is in force: the start report, the trainer's arguments, and the first steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.plan.incident import Proof
from sentinel.vocabulary.sample import RunStarted, Sample
from sentinel.vocabulary.training_settings import settings_of

FIRST_STEPS = 3  # steps of a new attempt that the proof of its changes waits for

# DeepSpeed, Megatron and Hugging Face log the gradient's norm from before it is clipped: it exceeds any limit
CLIPPING = "clipping can be confirmed only by the trainer's own start report, samples cannot show it"
PRINTED = 1e-3  # logs print a learning rate to four digits: a reading may be wrong by this part of itself

# setting -> names of it in the command lines of Megatron-LM, Megatron-DeepSpeed, Hugging Face's TrainingArguments,
# nanoGPT, Lightning, torchtitan and the reference trainer: in lower case, with hyphens, without the leading ones
_NAMES = {
    "lr": "lr learning-rate max-lr peak-lr base-lr lr-max",
    "min_lr": "min-lr lr-min learning-rate-min",
    "lr_warmup_steps": "lr-warmup-iters lr-warmup-steps lr-warmup warmup-iters warmup-steps num-warmup-steps "
    "warmup-num-steps",
    "clip_grad": "clip-grad max-grad-norm gradient-clipping gradient-clip-val grad-clip clip-grad-norm grad-norm-clip",
    "seed": "seed data-seed",
    "adam_beta1": "adam-beta1 beta1",
    "adam_beta2": "adam-beta2 beta2",
    "adam_eps": "adam-eps adam-epsilon eps",
    "weight_decay": "weight-decay wd",
    "loss_scale": "initial-loss-scale init-loss-scale loss-scale",
    "seqlen": "seq-length seqlen seq-len max-seq-length max-seq-len block-size",
    "global_batch": "global-batch-size global-batch total-batch-size",
    "micro_batch": "micro-batch-size micro-batch per-device-train-batch-size",
    "total_steps": "train-iters max-steps train-steps steps",
}
_SETTINGS = {name: setting for setting, names in _NAMES.items() for name in names.split()}

_REPORTED_AS = {  # setting -> field of RunStarted
    **{name: setting.reported_as or name for name, setting in settings_of().items() if setting.proof == "number"},
    "seed": "seed",
    "total_steps": "total_steps",
}

# Settings that loading a checkpoint replaces: that they were passed does not show that they are in force. DeepSpeed
# loads the optimizer's groups, the loss scale and (ZeRO 1 and 2, fused Adam) the clipping; Hugging Face's Trainer and
# Megatron load the LR scheduler.
_RESTORED = {"min_lr", "lr_warmup_steps", *(name for name, setting in settings_of().items() if setting.restored)}


def setting_of(flag: str) -> str | None:
    """The setting that the option or argument names: `--learning_rate` and `lr` are "lr"; None for any other."""
    return _SETTINGS.get(flag.lstrip("-").lower().replace("_", "-"))


def named_settings(options: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(setting, flag, value) of each option `--flag=value` that names a known setting."""
    for option in options:
        flag, _, value = option.partition("=")
        if (setting := setting_of(flag)) is not None:
            yield setting, flag, value


def wanted_number(value: str) -> float | None:
    """The option's value as a number; None for one that is not (a shell variable, a word)."""
    try:
        return float(value.strip("'\"").replace("_", ""))
    except ValueError:
        return None


def argument(setting: str, arguments: Mapping[str, Any]) -> float | None:
    """The setting's value among a trainer's arguments, by any of its names; None where none of them is a number."""
    numbers = (wanted_number(str(value)) for name, value in arguments.items() if setting_of(name) == setting)
    return next((number for number in numbers if number is not None), None)


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
class Finding:
    """Whether a setting has the value that it was to have."""

    answer: Proof
    seen: Any = None  # what was seen instead, or in confirmation; None where nothing was
    why: str | None = None  # how the answer was come to, as a phrase, where `seen` does not tell
    expected: Any = None  # what should have been seen, where that is not the wanted value itself


def find(setting: str, wanted: float, evidence: Evidence) -> Finding:
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
        return Finding(Proof.CONTRADICTED, passed, "the trainer's own arguments")
    if setting in _RESTORED:
        why = "the trainer's arguments show it, and a checkpoint can bring the old value back"
        return Finding(Proof.NOT_VERIFIED, found.seen, found.why or why)
    return Finding(Proof.CONFIRMED, passed)


def same(one: float, other: float, tolerance: float = 1e-9) -> bool:
    return math.isclose(one, other, rel_tol=tolerance)


def _measured(setting: str, wanted: float, evidence: Evidence) -> Finding:
    match setting:
        case "lr":
            return _lr(wanted, evidence)
        case "min_lr":
            return _equal(wanted, (evidence.reported("lr_schedule") or {}).get("minimum"))
        case "lr_warmup_steps":
            return _lr_warmup(wanted, evidence)
        case "clip_grad":
            found = _equal(wanted, evidence.reported("gradient_clipping"))
            return replace(found, why=CLIPPING) if found.answer is Proof.NOT_VERIFIED else found
        case "loss_scale":  # an overflow may have lowered it since the start, and it rises only after hundreds of steps
            told = evidence.reported("loss_scale")
            return _at_most(wanted, [s.loss_scale for s in evidence.samples]) if told is None else _equal(wanted, told)
        case "seqlen":
            return _at_most(wanted, [s.seqlen for s in evidence.samples])
        case "global_batch":
            return _at_most(wanted, [s.global_batch_samples for s in evidence.samples])
    return _equal(wanted, evidence.reported(_REPORTED_AS[setting]) if setting in _REPORTED_AS else None)


def _equal(wanted: float, seen: float | None) -> Finding:
    if seen is None:
        return Finding(Proof.NOT_VERIFIED)
    return Finding(Proof.CONFIRMED if same(seen, wanted) else Proof.CONTRADICTED, seen)


def _at_most(wanted: float, values: Iterable[float | None]) -> Finding:
    """A quantity of a step that a warmup can lower and nothing can raise."""
    highest = max((value for value in values if value is not None), default=None)
    if highest is not None and highest < wanted:
        return Finding(Proof.NOT_VERIFIED, highest, "it may warm up")
    return _equal(wanted, highest)


def _lr(wanted: float, evidence: Evidence) -> Finding:
    """The peak of the learning rate. A warmup or a decay only ever lowers it: the ratio to the same steps tells."""
    seen = evidence.learning_rates()
    if not seen:
        return Finding(Proof.NOT_VERIFIED)
    step, highest = max(seen.items(), key=lambda pair: pair[1])
    if all(same(lr, wanted, PRINTED) for lr in seen.values()):
        return Finding(Proof.CONFIRMED, highest)
    if highest > wanted * (1 + PRINTED):
        return Finding(Proof.CONTRADICTED, highest, f"the lr of step {step}")
    pairs, peak = evidence.same_steps(), _peak_before(evidence)
    if pairs and peak is not None and not same(peak, wanted, PRINTED):
        if all(same(now, old, PRINTED) for now, old in pairs):
            return Finding(Proof.CONTRADICTED, highest, "the same steps had the same lr before")
        if all(same(now * peak, old * wanted, 2 * PRINTED) for now, old in pairs):
            return Finding(Proof.CONFIRMED, highest, f"{wanted / peak:g} times the lr of the same steps")
    return Finding(Proof.NOT_VERIFIED, highest, "it may warm up or decay")


def _peak_before(evidence: Evidence) -> float | None:
    if evidence.before is None:
        return None
    peak = (evidence.before.lr_schedule or {}).get("peak", argument("lr", evidence.before.settings))
    return float(peak) if isinstance(peak, int | float) and peak > 0 else None


def _lr_warmup(wanted: float, evidence: Evidence) -> Finding:
    seen = next((s.lr_warmup_steps for s in evidence.samples if s.lr_warmup_steps is not None), None)
    schedule = evidence.reported("lr_schedule") or {}
    if seen is None and schedule.get("unit") == "steps":
        seen = schedule.get("warmup")
    if seen is not None and same(seen, wanted):  # the trainer's arguments, as often as not: see _RESTORED
        return Finding(Proof.NOT_VERIFIED, seen, "no step tells the length of a warmup")
    return _equal(wanted, seen)


def exactly(expected: Any, reported: Any) -> Finding:
    """Equal as JSON holds them, numbers to 1 part in 10^9; what was not reported is not verified."""
    if reported is None:
        return Finding(Proof.NOT_VERIFIED, expected=expected)
    numbers = isinstance(expected, float) and isinstance(reported, int | float)
    equal = same(expected, reported) if numbers else expected == reported
    return Finding(Proof.CONFIRMED if equal else Proof.CONTRADICTED, reported, expected=expected)
