"""Hugging Face's TrainingArguments as options of a job script: facts, the LR as a formula, and changes of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from sentinel.jobscript import RemoveOption, SetOption
from sentinel.jobscript.facts import ScriptFacts, number, whole
from sentinel.jobscript.given import Given, Unread
from sentinel.jobscript.megatron_options import Marked, Wanted, exact_number
from sentinel.jobscript.option_facts import AS_IT_IS, Known, Table, by_megatrons_names, not_negative, read_options
from sentinel.jobscript.training_yaml import TRAINING_ARGUMENTS
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import LrSchedule

_ON_A_RESUME = ("seed", "clip_grad")
"""What Trainer takes from its options on a resume too; the rest it loads from the checkpoint, the first step's LR as
well. With DeepSpeed the checkpoint holds the clipping, too."""

_TABLE: Table = {
    "--learning_rate": ("lr", number, 5e-5),
    "--warmup_steps": ("lr_warmup_iters", number, 0.0),
    "--warmup_ratio": ("lr_warmup_fraction", number, 0.0),
    "--max_grad_norm": ("clip_grad", number, 1.0),
    "--adam_beta1": ("adam_beta1", number, 0.9),
    "--adam_beta2": ("adam_beta2", number, 0.999),
    "--adam_epsilon": ("adam_eps", number, 1e-8),
    "--weight_decay": ("weight_decay", number, 0.0),
    "--max_steps": ("train_iters", lambda text: None if text == "-1" else whole(text)),
    "--per_device_train_batch_size": ("micro_batch_size", whole, 8),
    "--save_steps": ("save_interval", not_negative),
    "--eval_steps": ("eval_interval", not_negative),
}
NAMES = by_megatrons_names(_TABLE)
# Key of `standing` or `once` in overrides.json -> the option that holds its value as it is.
OPTIONS = {"seed": "--seed"} | {fact: flag for flag, (fact, *_) in _TABLE.items() if fact in AS_IT_IS}


def is_huggingface(given: Given) -> bool:
    """Whether the program takes TrainingArguments: by options that no other trainer has together."""
    return len({_plain(option.flag).removeprefix("--") for option in given.options} & TRAINING_ARGUMENTS) >= 3


def huggingface_facts(given: Given, unread: list[Unread]) -> Known:
    """What the options say, and TrainingArguments' defaults."""
    known, _ = read_options(given, unread, _TABLE, spelled=_plain)
    for option in given.options:
        on = not option.values or option.values[0].lower() in ("true", "yes", "1")  # a switch, or with a value
        if option.flag in ("--fp16", "--bf16") and option.unread is None and on:
            known["precision"] = option.flag.removeprefix("--")
    steps, ratio = known.pop("lr_warmup_iters", None), known.pop("lr_warmup_fraction", None)
    if steps is not None and steps >= 1:  # a larger one replaces the ratio
        known["lr_warmup_iters"] = int(steps)
    elif steps is not None and (share := steps or ratio):
        known["lr_warmup_fraction"] = share
    elif steps is not None and ratio is not None:
        known["lr_warmup_iters"] = 0
    return known


def lr_schedule(facts: ScriptFacts, *, style: str | None) -> LrSchedule | None:
    """Trainer's LR as its options ask for it; its first update is taken with the LR of step 0. None where the options
    do not show it, and for a scheduler that is no such formula."""
    total, peak = facts.train_iters, facts.lr
    warmup = facts.lr_warmup_iters
    if warmup is None and facts.lr_warmup_fraction is not None and total is not None:
        warmup = math.ceil(total * facts.lr_warmup_fraction)
    decays = style in ("linear", "cosine")
    if style == "constant":
        warmup = 0
    if peak is None or warmup is None or (decays and total is None):
        return None
    if not decays and style not in ("constant", "constant_with_warmup"):
        return None
    return LrSchedule(
        peak=peak,
        warmup=warmup,
        anchor=1 if warmup else 0,
        decay_start=warmup + 1 if decays else 0,
        decay_end=(total or 0) + 1 if decays else 0,
        decay_shape="linear" if style == "linear" else None,
    )


def huggingface_changes(wanted: Wanted, given: Given, *, anchor: int) -> Iterator[Marked]:
    """All that has to change in the script, for a run whose sequence length stays. ConfigError where Trainer would not
    go by it: on a resume (`anchor` above 0) most of it comes from the checkpoint."""
    flags = {option.flag for option in given.options}
    if "loss_scale" in wanted.numbers:
        raise ConfigError(f"no option of Hugging Face's Trainer changes the loss scale: {_CALLBACK}")
    kept = [] if anchor == 0 else [OPTIONS[name] for name in wanted.numbers if name not in _ON_A_RESUME]
    if anchor and (wanted.peak_lr is not None or wanted.lr_warmup is not None):
        kept.append("--learning_rate" if wanted.peak_lr is not None else "--warmup_steps")
    if anchor and "clip_grad" in wanted.numbers and {"--deepspeed"} & flags:
        kept.append("--max_grad_norm")
    if kept:
        raise ConfigError(
            f"on a resume Hugging Face's Trainer takes {', '.join(kept)} from the checkpoint: {_CALLBACK}, or start "
            "from scratch"
        )
    values: dict[str, float] = {OPTIONS[name]: value for name, value in wanted.numbers.items()}
    if "--seed" in values and any(_plain(flag) == "--data_seed" for flag in flags):
        values["--data_seed"] = values.pop("--seed")  # which then orders the data
    if wanted.peak_lr is not None:
        values["--learning_rate"] = wanted.peak_lr
    if wanted.lr_warmup is not None:
        values["--warmup_steps"] = wanted.lr_warmup.warmup
        if {"--base_model", "--warmup_ratio"} <= flags:  # axolotl takes one of the two
            yield Marked(change=RemoveOption(flag="--warmup_ratio"))
    for flag, value in values.items():
        yield Marked(change=SetOption(flag=_as_given(flag, flags), value=exact_number(value)))


_CALLBACK = "use StabilityCallback (docs/ATTACH.md)"


def scheduler_type(given: Given) -> str | None:
    """--lr_scheduler_type, "linear" where it is not given; None where it can't be read."""
    found = given.option("--lr_scheduler_type", _plain)
    return "linear" if found is None else found.value


def seed_of(given: Given) -> int | None:
    """The seed that orders the data: --data_seed, else --seed, else 42."""
    found = given.option("--data_seed", _plain) or given.option("--seed", _plain)
    if found is None:
        return 42 if given.complete else None
    return int(found.value) if found.value is not None and re.fullmatch(r"\d+", found.value) else None


def _plain(flag: str) -> str:
    """HfArgumentParser takes `--learning-rate` as well."""
    return f"--{flag.lstrip('-').replace('-', '_')}"


def _as_given(flag: str, flags: set[str]) -> str:
    spelled = [each for each in flags if _plain(each) == flag]
    if len(spelled) > 1:
        raise ConfigError(f"the script gives {' and '.join(sorted(spelled))}, which are one option")
    return spelled[0] if spelled else flag
