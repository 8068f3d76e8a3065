"""Facts from the options of Megatron's trainers (BigScience's, Microsoft's, NVIDIA's) and of `trainer_hooks.gpt`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product
from typing import Any, TypeVar, get_args

from sentinel.jobscript.facts import BatchRamp, Curriculum, LrScheduler, declared_parameters, number, whole
from sentinel.jobscript.given import Given, Option, Unread
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.training_settings import settings_of

T = TypeVar("T")
Known = dict[str, Any]  # Values of `Facts`, by their names
_WHOLE = [
    *["hidden-size", "ffn-hidden-size", "num-layers", "num-attention-heads", "kv-channels", "seq-length"],
    *["max-position-embeddings", "vocab-size", "padded-vocab-size", "num-experts", "context-parallel-size"],
    *["world-size", "micro-batch-size", "global-batch-size", "train-samples", "train-iters", "train-tokens"],
    *["lr-decay-samples", "lr-decay-iters", "lr-decay-tokens"],
]
_NOT_NEGATIVE = ["lr-warmup-samples", "lr-warmup-iters", "lr-warmup-tokens"]
_NOT_NEGATIVE += ["save-interval", "eval-interval", "exit-interval"]
_NUMBERS = ["lr-warmup-fraction", "lr", "min-lr"]
# Settings whose value stands in one option as it is.
AS_IT_IS = {name: setting for name, setting in settings_of().items() if setting.option}


def not_negative(text: str) -> int:
    return int(number(str(int(text))))


# Option -> the fact, and how its value is read or, for a switch, what it says; then the trainer's own value where the
# option is not given. Megatron's are in megatron/arguments.py, the same in all three.
Table = Mapping[str, tuple[Any, ...]]
_MEGATRON: Table = {
    **{f"--{name}": (name.replace("-", "_"), whole) for name in _WHOLE},
    **{f"--{name}": (name.replace("-", "_"), not_negative) for name in _NOT_NEGATIVE},
    **{f"--{name}": (name.replace("-", "_"), number) for name in _NUMBERS},
    **{setting.option: (name, number, setting.default) for name, setting in AS_IT_IS.items()},
    "--tensor-model-parallel-size": ("tensor_model_parallel_size", whole, 1),
    "--pipeline-model-parallel-size": ("pipeline_model_parallel_size", whole, 1),
    "--make-vocab-size-divisible-by": ("make_vocab_size_divisible_by", whole, 128),
    "--init-method-std": ("init_method_std", number, 0.02),
    "--pad-vocab-size-to": ("padded_vocab_size", whole),
    "--num-key-value-heads": ("num_query_groups", whole),
    "--ds-sequence-parallel-size": ("context_parallel_size", whole),
    "--exit-duration-in-mins": ("exit_duration_min", number),
    "--pp-partition-method": ("pp_partition_method", lambda text: text.strip("'\"")),
    "--position-embedding-type": ("learned_positions", lambda text: text.lower() in ("absolute", "learned_absolute")),
}
_GROUPED: Table = {"--num-query-groups": ("num_query_groups", whole)}  # Only with --group-query-attention
_LOSS_SCALES: Table = {  # Not with --deepspeed, whose engine takes them from its JSON; 0 is none
    "--loss-scale": ("static_loss_scale", lambda text: number(text) or None),
    "--initial-loss-scale": ("initial_loss_scale", lambda text: number(text) or None),
}
_SWITCHES: Table = {
    "--swiglu": ("gated_ffn", True, False),
    "--glu-activation": ("gated_ffn", True),
    "--embed-layernorm": ("embed_layernorm", True, False),
    "--untie-embeddings-and-output-weights": ("tied_embeddings", False, True),
    "--use-rotary-position-embeddings": ("learned_positions", False, True),
    "--fp16": ("precision", "fp16"),
    "--bf16": ("precision", "bf16"),
}


def by_megatrons_names(table: Table) -> dict[str, str]:
    """Another trainer's options, by Megatron's names for them, which the rules of lint use."""
    return {f"--{fact.replace('_', '-')}": flag for flag, (fact, *_) in table.items()}


def defaults_of(*tables: Table) -> Known:
    """The trainer's own values, for options that are not given."""
    return {name: default[0] for table in tables for name, _, *default in table.values() if default}


def read_options(
    given: Given, unread: list[Unread], *tables: Table, spelled: Callable[[str], str] = str
) -> tuple[Known, set[str]]:
    """The values of the options in the tables, the last of each, those of a later table before an earlier one's; the
    trainer's own for options that are not given, if there are no others to be seen. And the facts that an unreadable
    option leaves open."""
    known: Known = {}
    unsure: set[str] = set()
    for table, option in product(tables, given.options):
        name, meaning, *_ = table.get(spelled(option.flag), ("", None))
        why = option.unread
        try:
            if name and why is None:
                known[name] = meaning(option.values[0]) if callable(meaning) else meaning
        except (ValueError, IndexError):
            why = Unread(what=option.flag, why=f"{' '.join(option.values) or 'nothing'} is not a value for it")
        if name and why is not None:
            unsure.add(name)
            unread.append(why)
    known = (defaults_of(*tables) if given.complete else {}) | known
    return {name: value for name, value in known.items() if name not in unsure}, unsure


def megatron_facts(given: Given, unread: list[Unread]) -> Known:
    """What the options say, and what it means that others are not there."""
    flags = {option.flag: option for option in given.options}
    grouped = _GROUPED if "--group-query-attention" in flags else {}
    scales = {} if "--deepspeed" in flags else _LOSS_SCALES
    known, unsure = read_options(given, unread, {**_MEGATRON, **grouped, **scales}, _SWITCHES)
    known["lr_scheduler"] = by_options(flags)
    if (ramp := flags.get("--rampup-batch-size")) is not None:
        known["rampup_batch_size"] = _ramp(ramp, unread)
    if given.complete:
        _absent(known, unsure, flags)
    return {name: value for name, value in known.items() if name not in unsure}


def _absent(known: Known, unsure: set[str], flags: Mapping[str, Option]) -> None:
    """What it means that an option is not there."""
    if ("--save" not in flags or "save_interval" not in known) and "save_interval" not in unsure:
        known["save_interval"] = 0
    if "--deepspeed" not in flags:
        known.setdefault("initial_loss_scale", 2.0**32)
    elif "--no-pipeline-parallel" not in flags:
        known.setdefault("pp_partition_method", "type:transformer")
    unit = "samples" if known.get("train_samples") else "iters"
    warmups = [f"lr_warmup_{each}" for each in ("iters", "samples", "tokens", "fraction")]
    given = [name for name in warmups if known.get(name)]
    for name in warmups:  # those of the other units are 0 by default, and mean nothing
        if name not in given:
            known.pop(name, None)
    if not given and unsure.isdisjoint(warmups):
        known[f"lr_warmup_{unit}"] = 0


def _ramp(option: Option, unread: list[Unread]) -> BatchRamp | None:
    try:
        if option.unread is not None:
            raise ValueError
        start, increment, samples = (int(value) for value in option.values)
        return BatchRamp(start=start, increment=increment, samples=samples)
    except (ValueError, ConfigError):
        unread.append(option.unread or Unread(what=option.flag, why=f"{' '.join(option.values)} are not three numbers"))
        return None


def made(kind: type[T], values: Known, what: str, unread: list[Unread]) -> T | None:
    """An object of these values; None, and said, where no run can have them."""
    try:
        return kind(**values)
    except ConfigError as error:
        unread.append(Unread(what=what, why=str(error)))
        return None


# How a fork is told to take its LR from the options and not from the checkpoint: what stands behind `--override-`.
SCHEDULERS: tuple[LrScheduler, ...] = get_args(LrScheduler)
_DEFINED = re.compile(rf"""["']--override-({"|".join(SCHEDULERS)})["']""")
# Options that only parsers with one of the names have (read off the forks' arguments.py), in words.
_OLDER = (
    "abort-on-unmet-fused-kernel-constraints embed-layernorm eval-only glu-activation kill-switch-path log-level "
    "log-level-replica pad-vocab-size-to position-embedding-type pp-partition-method skip-train-iteration-range "
    "sync-tp-duplicated-parameters train-weighted-split-paths train-weighted-split-paths-path"
)
_NEWER = (
    "apply-layernorm-1p disable-bias-linear distributed-timeout-minutes ds-sequence-parallel-size end-weight-decay "
    "group-query-attention log-optimizer-states-to-tensorboard no-async-tensor-model-parallel-allreduce "
    "no-gradient-accumulation-fusion no-persist-layer-norm normalization num-key-value-heads num-query-groups "
    "recompute-activations recompute-granularity sequence-parallel start-weight-decay swiglu transformer-impl "
    "untie-embeddings-and-output-weights use-distributed-optimizer use-flash-attn use-flash-attn-v2 use-mcore-models "
    "use-rotary-position-embeddings weight-decay-incr-style"
)


def by_options(flags: Collection[str]) -> LrScheduler | None:
    """The name that the parser of a script with these options has; None where they do not tell."""
    named = {name for name in SCHEDULERS if {f"--override-{name}", f"--use-checkpoint-{name}"} & set(flags)}
    words = {flag.removeprefix("--") for flag in flags}
    if not named:
        named = {name for name, own in zip(SCHEDULERS, (_OLDER, _NEWER), strict=False) if words & set(own.split())}
    return named.pop() if len(named) == 1 else None


def defined_in(sources: Iterable[str]) -> LrScheduler | None:
    """The name that a trainer's own files define; the first of the table where they define several."""
    found = {name for source in sources for name in _DEFINED.findall(source)}
    return next((name for name in SCHEDULERS if name in found), None)


# Layers, width, heads and length, as the trainer has them.
PRESETS: Mapping[str, tuple[int, int, int, int]] = {
    "tiny": (4, 64, 4, 128),
    "117M": (12, 768, 12, 1024),
    "350M": (24, 1024, 16, 1024),
    "1.5B": (48, 1600, 25, 1024),
    "gpt3-125M": (12, 768, 12, 2048),
    "gpt3-1.3B": (24, 2048, 16, 2048),
}
_GPT_TRAINER: Table = {
    "--preset": ("preset", str, "tiny"),
    "--seqlen": ("seq_length", whole),
    "--vocabulary": ("padded_vocab_size", whole),
    "--lr": ("lr", number, 6e-4),
    "--lr-min": ("min_lr", number, 0.0),
    "--lr-warmup": ("lr_warmup", not_negative, 0),
    "--lr-decay": ("lr_decay", not_negative),
    "--lr-unit": ("lr_unit", str, "steps"),
    "--beta1": ("adam_beta1", number, 0.9),
    "--beta2": ("adam_beta2", number, 0.999),
    "--clip": ("clip_grad", number, 1.0),
    "--global-batch": ("global_batch_size", whole, 16),
    "--micro-batch": ("micro_batch_size", whole),
    "--seqlen-start": ("seqlen_start", whole),
    "--seqlen-warmup-steps": ("seqlen_warmup_steps", not_negative, 0),
    "--steps": ("train_iters", whole),
    "--tokens": ("train_tokens", whole),
    "--validate-every": ("eval_interval", not_negative, 0),
    "--precision": ("precision", str, "fp32"),
    "--save-interval": ("save_interval", not_negative, 0),
    "--run": ("run", str),
}
NAMES = {"--lr-decay-tokens": "--lr-unit tokens --lr-decay", "--lr-warmup-samples": "--lr-warmup"}
NAMES |= by_megatrons_names(_GPT_TRAINER)
DEFAULTS = defaults_of(_GPT_TRAINER)


def gpt_trainer_facts(given: Given, unread: list[Unread]) -> Known:
    """What the options say, with the preset's shape and the trainer's defaults."""
    known, unsure = read_options(given, unread, _GPT_TRAINER)
    facts: Known = {"gated_ffn": False, "tied_embeddings": True, "learned_positions": True}
    facts |= {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
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
    facts |= known
    if start is not None and unsure.isdisjoint(("seqlen_warmup_steps", "seqlen_start")):
        slw = {"min_difficulty": start, "max_difficulty": facts.get("seq_length"), "difficulty_step": 8}
        slw |= {"schedule": "fixed_linear", "total_steps": duration}
        facts["curriculum"] = made(Curriculum, slw, "--seqlen-start", unread)
    return facts
