"""Facts from the options of sentinel's own trainer, `python -m trainer_hooks.gpt`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.jobscript.facts import Curriculum
from sentinel.jobscript.given import Given, Unread
from sentinel.jobscript.megatron_facts import Known, read_options
from sentinel.jobscript.numbers_in_words import declared_parameters, number, whole
from sentinel.vocabulary.errors import ConfigError

PRESETS: Mapping[str, tuple[int, int, int, int]] = {
    "tiny": (4, 64, 4, 128),
    "117M": (12, 768, 12, 1024),
    "350M": (24, 1024, 16, 1024),
    "1.5B": (48, 1600, 25, 1024),
    "gpt3-125M": (12, 768, 12, 2048),
    "gpt3-1.3B": (24, 2048, 16, 2048),
}
"""Layers, width, heads and length, as the trainer has them."""

NAMES: Mapping[str, str] = {
    "--adam-beta2": "--beta2",
    "--clip-grad": "--clip",
    "--eval-interval": "--validate-every",
    "--lr-decay-tokens": "--lr-unit tokens --lr-decay",
    "--lr-warmup-samples": "--lr-warmup",
    "--min-lr": "--lr-min",
    "--train-iters": "--steps",
    "--train-tokens": "--tokens",
}
"""Its options, by Megatron's names for them."""


def _not_negative(text: str) -> int:
    return int(number(str(int(text))))


_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "--preset": ("preset", str),
    "--seqlen": ("seq_length", whole),
    "--vocabulary": ("padded_vocab_size", whole),
    "--lr": ("lr", number),
    "--lr-min": ("min_lr", number),
    "--lr-warmup": ("lr_warmup", _not_negative),
    "--lr-decay": ("lr_decay", _not_negative),
    "--lr-unit": ("lr_unit", str),
    "--beta1": ("adam_beta1", number),
    "--beta2": ("adam_beta2", number),
    "--clip": ("clip_grad", number),
    "--global-batch": ("global_batch_size", whole),
    "--micro-batch": ("micro_batch_size", whole),
    "--seqlen-start": ("seqlen_start", whole),
    "--seqlen-warmup-steps": ("seqlen_warmup_steps", _not_negative),
    "--steps": ("train_iters", whole),
    "--tokens": ("train_tokens", whole),
    "--validate-every": ("eval_interval", _not_negative),
    "--precision": ("precision", str),
    "--save-interval": ("save_interval", _not_negative),
    "--run": ("run", str),
}
DEFAULTS: Known = {
    "preset": "tiny",
    "lr": 6e-4,
    "min_lr": 0.0,
    "lr_warmup": 0,
    "lr_unit": "steps",
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "clip_grad": 1.0,
    "global_batch_size": 16,
    "seqlen_warmup_steps": 0,
    "eval_interval": 0,
    "precision": "fp32",
    "save_interval": 0,
}
"""The trainer's own, for options that are not given."""


def gpt_trainer_facts(given: Given, unread: list[Unread]) -> Known:
    """What the options say, with the preset's shape and the trainer's defaults."""
    known, unsure = read_options(given, _OPTIONS, unread)
    for name, value in DEFAULTS.items() if given.complete else ():
        if name not in unsure:
            known.setdefault(name, value)
    facts: Known = {
        "gated_ffn": False,
        "tied_embeddings": True,
        "learned_positions": True,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
    }
    preset = known.pop("preset", None)
    if preset in PRESETS:
        layers, width, heads, length = PRESETS[preset]
        facts |= {"num_layers": layers, "hidden_size": width, "num_attention_heads": heads, "seq_length": length}
        facts["declared_parameters"] = declared_parameters(preset)
    start, duration = known.pop("seqlen_start", None), known.pop("seqlen_warmup_steps", None)
    unit, warmup, decay = known.pop("lr_unit", None), known.pop("lr_warmup", None), known.pop("lr_decay", None)
    if unit is not None:
        suffix = "tokens" if unit == "tokens" else "iters"
        facts |= {f"lr_warmup_{suffix}": warmup, f"lr_decay_{suffix}": decay or None}
    known.pop("run", None)
    facts |= known
    if start is not None and unsure.isdisjoint(("seqlen_warmup_steps", "seqlen_start")):
        facts["curriculum"] = _curriculum(start, duration, facts.get("seq_length"), unread)
    return facts


def _curriculum(start: int, duration: int | None, full: Any, unread: list[Unread]) -> Curriculum | None:
    try:
        return Curriculum(
            min_difficulty=start,
            max_difficulty=full,
            difficulty_step=8,
            schedule="fixed_linear",
            total_steps=duration,
        )
    except ConfigError as error:
        unread.append(Unread(what="--seqlen-start", why=str(error)))
        return None
