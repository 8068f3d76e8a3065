"""Names that trainers give to options of known settings: which setting a free-form change names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["argument", "named_settings", "setting_of", "wanted_number"]

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
"""Setting -> names of it in the trainers' command lines, in lower case, with hyphens, without the leading ones.

Megatron-LM and Megatron-DeepSpeed, Hugging Face's TrainingArguments, nanoGPT, Lightning, torchtitan, the reference
trainer.
"""

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
