"""What shows whether a setting is in force: the start report, the trainer's arguments, and the first steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.plan.incident import Proof
from sentinel.vocabulary.sample import RunStarted, Sample
from sentinel.vocabulary.training_settings import settings_of

# setting -> names of it in the trainers' command lines, in lower case, with hyphens, without the leading ones.
# Megatron-LM and Megatron-DeepSpeed, Hugging Face's TrainingArguments, nanoGPT, Lightning, torchtitan, the reference
# trainer.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "lr": ("lr", "learning-rate", "max-lr", "peak-lr", "base-lr", "lr-max"),
    "min_lr": ("min-lr", "lr-min", "learning-rate-min"),
    "lr_warmup_steps": (
        "lr-warmup-iters",
        "lr-warmup-steps",
        "lr-warmup",
        "warmup-iters",
        "warmup-steps",
        "num-warmup-steps",
        "warmup-num-steps",
    ),
    "clip_grad": (
        "clip-grad",
        "max-grad-norm",
        "gradient-clipping",
        "gradient-clip-val",
        "grad-clip",
        "clip-grad-norm",
        "grad-norm-clip",
    ),
    "seed": ("seed", "data-seed"),
    "adam_beta1": ("adam-beta1", "beta1"),
    "adam_beta2": ("adam-beta2", "beta2"),
    "adam_eps": ("adam-eps", "adam-epsilon", "eps"),
    "weight_decay": ("weight-decay", "wd"),
    "loss_scale": ("initial-loss-scale", "init-loss-scale", "loss-scale"),
    "seqlen": ("seq-length", "seqlen", "seq-len", "max-seq-length", "max-seq-len", "block-size"),
    "global_batch": ("global-batch-size", "global-batch", "total-batch-size"),
    "micro_batch": ("micro-batch-size", "micro-batch", "per-device-train-batch-size"),
    "total_steps": ("train-iters", "max-steps", "train-steps", "steps"),
}

_SETTINGS = {name: setting for setting, names in _NAMES.items() for name in names}


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
    for name, value in arguments.items():
        if setting_of(name) == setting and (number := wanted_number(str(value))) is not None:
            return number
    return None


FIRST_STEPS = 3  # steps of a new attempt that the proof of its changes waits for

# DeepSpeed, Megatron and Hugging Face log the gradient's norm from before it is clipped: it exceeds any limit
CLIPPING = "clipping can be confirmed only by the trainer's own start report, samples cannot show it"

# logs print a learning rate to four digits: so far may a reading lie from what it stands for, as a part of it
PRINTED = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a new attempt has shown so far, and what the run showed before the change."""

    started: RunStarted
    samples: tuple[Sample, ...] = ()  # the attempt's first steps, in order
    before: RunStarted | None = None  # the start report of the attempt that diverged; None where it has none
    # global_step -> learning rate of the same steps before the rollback
    lr_before: Mapping[int, float] = field(default_factory=dict)

    def reported(self, name: str) -> Any:
        """The start report's field; None where it was read from the trainer's arguments alone.

        A checkpoint brings back the optimizer's settings: an argument shows what was asked for, not what is in force.
        """
        return None if name in (self.started.from_arguments or ()) else getattr(self.started, name)

    def learning_rates(self) -> dict[int, float]:
        """global_step -> lr of the first steps, as far as the trainer reports them."""
        return {s.global_step: s.lr for s in self.samples if s.lr is not None and math.isfinite(s.lr)}

    def same_steps(self) -> list[tuple[float, float]]:
        """(lr now, lr before) of the first steps that the run made before, too."""
        rates = self.learning_rates().items()
        return [(lr, self.lr_before[step]) for step, lr in rates if self.lr_before.get(step)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether a setting has the value that it was to have."""

    answer: Proof
    seen: Any = None  # what was seen instead, or in confirmation; None where nothing was
    why: str | None = None  # how the answer was come to, as a phrase, where `seen` does not tell
    expected: Any = None  # what should have been seen, where that is not the wanted value itself


_UNKNOWN = Finding(answer=Proof.NOT_VERIFIED)


def find(setting: str, wanted: float, evidence: Evidence) -> Finding:
    """Whether the setting is in force with the wanted value: by what was measured, else by the trainer's arguments."""
    look = _MEASURED.get(setting)
    found = look(wanted, evidence) if look is not None else _UNKNOWN
    if found.answer is not Proof.NOT_VERIFIED:
        return found
    passed = argument(setting, evidence.started.settings)
    field_name = _REPORTED_AS.get(setting)
    if passed is None and field_name is not None:
        passed = getattr(evidence.started, field_name)
    if passed is None:
        return found
    if not same(passed, wanted):
        return Finding(answer=Proof.CONTRADICTED, seen=passed, why="the trainer's own arguments")
    if setting in _RESTORED:
        why = "the trainer's arguments show it, and a checkpoint can bring the old value back"
        return Finding(answer=Proof.NOT_VERIFIED, seen=found.seen, why=found.why or why)
    return Finding(answer=Proof.CONFIRMED, seen=passed)


def same(one: float, other: float, tolerance: float = 1e-9) -> bool:
    """Whether two numbers are equal, to so small a part of the larger."""
    return math.isclose(one, other, rel_tol=tolerance)


def _lr(wanted: float, evidence: Evidence) -> Finding:
    """The peak of the learning rate, by the learning rates of the first steps.

    A warmup or a decay only ever lowers them. Where the run took the same steps before, their ratio tells.
    """
    seen = evidence.learning_rates()
    if not seen:
        return _UNKNOWN
    step, highest = max(seen.items(), key=lambda pair: pair[1])
    if all(same(lr, wanted, PRINTED) for lr in seen.values()):
        return Finding(answer=Proof.CONFIRMED, seen=highest)
    if highest > wanted * (1 + PRINTED):
        return Finding(answer=Proof.CONTRADICTED, seen=highest, why=f"the lr of step {step}")
    pairs, peak = evidence.same_steps(), _peak_before(evidence)
    if not pairs or peak is None or same(peak, wanted, PRINTED):
        return Finding(answer=Proof.NOT_VERIFIED, seen=highest, why="it may warm up or decay")
    if all(same(now, old, PRINTED) for now, old in pairs):
        return Finding(answer=Proof.CONTRADICTED, seen=highest, why="the same steps had the same lr before")
    if all(same(now * peak, old * wanted, 2 * PRINTED) for now, old in pairs):
        return Finding(answer=Proof.CONFIRMED, seen=highest, why=f"{wanted / peak:g} times the lr of the same steps")
    return Finding(answer=Proof.NOT_VERIFIED, seen=highest, why="it may warm up or decay")


def _peak_before(evidence: Evidence) -> float | None:
    if evidence.before is None:
        return None
    schedule = evidence.before.lr_schedule or {}
    peak = schedule.get("peak", argument("lr", evidence.before.settings))
    return float(peak) if isinstance(peak, int | float) and peak > 0 else None


def _reported(name: str) -> Callable[[float, Evidence], Finding]:
    def look(wanted: float, evidence: Evidence) -> Finding:
        return _equal(wanted, evidence.reported(name))

    return look


def _equal(wanted: float, seen: float | None) -> Finding:
    if seen is None:
        return _UNKNOWN
    return Finding(answer=Proof.CONFIRMED if same(seen, wanted) else Proof.CONTRADICTED, seen=seen)


def _at_most(name: str) -> Callable[[float, Evidence], Finding]:
    """A quantity of a step that a warmup can lower and nothing can raise."""

    def look(wanted: float, evidence: Evidence) -> Finding:
        seen = [value for sample in evidence.samples if (value := getattr(sample, name)) is not None]
        if not seen:
            return _UNKNOWN
        if max(seen) < wanted:
            return Finding(answer=Proof.NOT_VERIFIED, seen=max(seen), why="it may warm up")
        return _equal(wanted, max(seen))

    return look


def _clip_grad(wanted: float, evidence: Evidence) -> Finding:
    found = _equal(wanted, evidence.reported("gradient_clipping"))
    return replace(found, why=CLIPPING) if found.answer is Proof.NOT_VERIFIED else found


def _lr_warmup(wanted: float, evidence: Evidence) -> Finding:
    seen = next((s.lr_warmup_steps for s in evidence.samples if s.lr_warmup_steps is not None), None)
    schedule = evidence.reported("lr_schedule") or {}
    if seen is None and schedule.get("unit") == "steps":
        seen = schedule.get("warmup")
    if seen is not None and same(seen, wanted):  # the trainer's arguments, as often as not: see _RESTORED
        return Finding(answer=Proof.NOT_VERIFIED, seen=seen, why="no step tells the length of a warmup")
    return _equal(wanted, seen)


def _loss_scale(wanted: float, evidence: Evidence) -> Finding:
    """At the start; an overflow may have lowered it since, and it rises only after hundreds of steps."""
    if (told := evidence.reported("loss_scale")) is not None:
        return _equal(wanted, told)
    return _at_most("loss_scale")(wanted, evidence)


def _min_lr(wanted: float, evidence: Evidence) -> Finding:
    return _equal(wanted, (evidence.reported("lr_schedule") or {}).get("minimum"))


# setting -> field of RunStarted
_REPORTED_AS: Mapping[str, str] = {
    **{name: setting.reported_as or name for name, setting in settings_of().items() if setting.proof == "number"},
    "seed": "seed",
    "total_steps": "total_steps",
}

_MEASURED: Mapping[str, Callable[[float, Evidence], Finding]] = {
    **{setting: _reported(name) for setting, name in _REPORTED_AS.items()},
    "clip_grad": _clip_grad,
    "lr": _lr,
    "min_lr": _min_lr,
    "lr_warmup_steps": _lr_warmup,
    "loss_scale": _loss_scale,
    "seqlen": _at_most("seqlen"),
    "global_batch": _at_most("global_batch_samples"),
}
# settings that loading a checkpoint replaces: that they were passed does not show that they are in force. DeepSpeed
# loads the optimizer's groups, the loss scale and (ZeRO 1 and 2, fused Adam) the clipping; Hugging Face's Trainer and
# Megatron load the LR scheduler.
_RESTORED = {"min_lr", "lr_warmup_steps", *(name for name, setting in settings_of().items() if setting.restored)}
