"""The trainer's arguments, as a person gives them; and the DeepSpeed configuration that they make."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from sentinel.vocabulary.errors import ConfigError, LineError, OverridesError
from sentinel.vocabulary.numbers import load_object
from sentinel.vocabulary.overrides import Free
from sentinel.vocabulary.pacing import BatchSizeSchedule, Shortening
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency, curriculum_learning, data_efficiency
from trainer_hooks.gpt.model import PRESETS, Shape
from trainer_hooks.regular_files import read_regular


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = _parser()
    settings = parser.parse_args(argv)
    if settings.steps is None and settings.tokens is None:
        parser.error("say where the run ends: --steps or --tokens")
    decay_unit = settings.lr_decay_unit or settings.lr_unit
    if settings.lr_decay is None and (settings.steps if decay_unit == "steps" else settings.tokens) is None:
        parser.error(f"--lr-decay is needed: the run does not end by {decay_unit}, which the LR's decay counts in")
    if settings.seqlen_schedule is not None and settings.seqlen_start is not None:
        parser.error("--seqlen-schedule and --seqlen-start say the same thing: leave one out")
    if settings.recipe and (settings.lr_warmup or settings.lr_decay or settings.lr_min):
        parser.error(
            "a --recipe's LR goes by tokens: its warmup is --lr-warmup-tokens, its decay and minimum are given"
        )
    if settings.lr_warmup and settings.lr_warmup_tokens:
        parser.error("--lr-warmup and --lr-warmup-tokens say the same thing: leave one out")
    if settings.state_dir is None:
        settings.state_dir = Path(os.environ.get("SENTINEL_STATE_DIR") or Path(".sentinel") / settings.run)
    return settings


def with_free_options(settings: argparse.Namespace, free: Free | None) -> argparse.Namespace:
    """The settings with the free-form options of overrides.json. OverridesError for any that this trainer won't take.
    Environment variables would have to be set before the process starts, so it takes none."""
    if free is None:
        return settings
    if free.environment:
        raise OverridesError(f"overrides.json: environment: this trainer takes none, so not {min(free.environment)!r}")
    if free.removed:
        raise OverridesError(f"overrides.json: removed: this trainer can't leave options out, so not {free.removed[0]}")
    changed = dict(vars(settings))
    for option in free.options:
        name, equals, value = option.partition("=")
        read = _FREE_OPTIONS.get(name)
        if read is None or not equals:
            known = ", ".join(f"{known}=…" for known in _FREE_OPTIONS)
            raise OverridesError(f"overrides.json: options: this trainer takes {known}, not {option!r}")
        try:
            changed[name.removeprefix("--").replace("-", "_")] = read(value)
        except ValueError as error:
            raise OverridesError(f"overrides.json: options: {option!r}: {error}") from error
    return argparse.Namespace(**changed)


_FREE_OPTIONS: dict[str, Callable[[str], Any]] = {"--eps": float, "--dropout": float, "--micro-batch": int}
"""Options that a restart may change and that sentinel has no word of its own for."""


_ABOUT = "The trainer's arguments, as a person gives them."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer_hooks.gpt", description=_ABOUT, allow_abbrev=False)
    model = parser.add_argument_group("model")
    model.add_argument("--preset", choices=PRESETS, default="tiny")
    model.add_argument("--seqlen", type=int, help="full length in tokens; default is the preset's")
    model.add_argument("--no-block-layernorm", action="store_true", help="leave the LayerNorms inside the blocks out")
    model.add_argument("--dropout", type=float, default=0.0)
    data = parser.add_argument_group("data")
    data.add_argument("--data", type=Path, nargs="*", default=[], help="text, or one .bin; default: Python's library")
    data.add_argument("--vocabulary", type=int, help="of a token file; default 50304")
    data.add_argument("--validation-share", type=float, default=0.02)
    data.add_argument("--seed", type=int, default=0)
    opt = parser.add_argument_group("optimizer")
    opt.add_argument("--lr", type=float, default=6e-4, help="peak")
    opt.add_argument("--lr-min", type=float, default=0.0)
    opt.add_argument("--lr-warmup", type=int, default=0, help="in --lr-unit")
    opt.add_argument("--lr-warmup-tokens", type=int, help="in place of --lr-warmup; as steps at the first length")
    opt.add_argument("--lr-decay", type=int, help="where the cosine ends, in --lr-decay-unit; default: the run's end")
    opt.add_argument("--lr-unit", choices=("steps", "tokens"), default="steps", help="what the warmup counts in")
    opt.add_argument("--lr-decay-unit", choices=("steps", "tokens"), help="default --lr-unit; tokens go well with SLW")
    opt.add_argument("--beta1", type=float, default=0.9)
    opt.add_argument("--beta2", type=float, default=0.999)
    opt.add_argument("--eps", type=float, default=1e-8)
    opt.add_argument("--weight-decay", type=float, default=0.01)
    opt.add_argument("--clip", type=float, default=1.0, help="gradient clipping; 0: off")
    batch = parser.add_argument_group("batch, length and end")
    batch.add_argument("--global-batch", type=int, default=16, help="samples per step, over all ranks")
    batch.add_argument("--micro-batch", type=int, help="samples per rank and pass; default: no accumulation")
    batch.add_argument(
        *("--rampup-batch-size", "--batch-size-warmup"),
        type=int,
        nargs=3,
        metavar=("START", "INCREMENT", "SAMPLES"),
        help="batch-size warmup: from START up to --global-batch by INCREMENT, over so many SAMPLES",
    )
    batch.add_argument("--steps", type=int, help="end after this many steps")
    batch.add_argument("--tokens", type=int, help="end after this many tokens")
    batch.add_argument("--validate-every", type=int, default=0, help="steps; 0 is never")
    batch.add_argument("--validate-every-warming-up", type=int, help="while SLW lasts; default half of the above")
    batch.add_argument("--validation-batches", type=int, default=4)
    data_efficiency = parser.add_argument_group("sequence length warmup and data efficiency")
    slw = data_efficiency.add_argument
    slw("--seqlen-start", type=int, help="switch sequence length warmup on, from this length")
    slw("--seqlen-warmup-steps", type=int, default=0, help="steps from start to full length")
    slw(
        "--seqlen-schedule", type=_json, metavar="JSON", help="any pacing, as overrides.json holds it, in place of both"
    )
    slw("--seqlen-shorten", choices=get_args(Shortening), default="truncate", help="how a batch gets shorter")
    slw("--random-ltd", type=int, nargs=2, metavar=("START", "STEPS"), help="middle layers keep START tokens at first")
    slw("--curriculum", type=_json, metavar="JSON", help="metrics that pace the data, as overrides.json holds them")
    slw("--recipe", nargs="+", choices=("slw", "voc", "random-ltd"), help="the papers', scaled to this run's steps")
    slw("--data-share", type=float, default=1.0, help="of a --recipe's data: the peak LR is --lr over it")
    slw("--voc-index", type=Path, help="of --recipe voc: what `sentinel-data analyze` made")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    engine.add_argument("--zero", type=int, choices=range(4), default=0)
    engine.add_argument("--fused-adam", action="store_true", help="DeepSpeed's own Adam; its op is compiled once")
    engine.add_argument(
        "--deepspeed-config",
        type=Path,
        help="JSON that is laid over the one made here; curriculum_learning and data_efficiency are performed by us",
    )
    files = parser.add_argument_group("files")
    files.add_argument("--run", default="run", help="the run's name")
    files.add_argument("--state-dir", type=Path, help="default SENTINEL_STATE_DIR, else .sentinel/RUN")
    files.add_argument("--save", type=Path, default=Path("checkpoints"))
    files.add_argument("--save-interval", type=int, default=0, help="steps; 0 is never")
    files.add_argument("--memory-targets", type=int, default=0, help="states that each rank keeps in its host's memory")
    files.add_argument("--memory-every", type=int, default=50, help="steps from one of them to the next")
    files.add_argument("--tensorboard", type=Path)
    files.add_argument("--save-on-stop", action="store_true", help="save when asked to stop")
    files.add_argument("--stop-exit-code", type=int, default=0, help="exit code after SIGTERM or the KILL file")
    files.add_argument("--metrics-address", default="127.0.0.1", help="where /metrics listens; 0.0.0.0 is everywhere")
    files.add_argument("--metrics-port", type=int, default=0, help="of /metrics; 0 is any free one")
    files.add_argument("--metrics-announce", metavar="NAME", help="the name that Prometheus reaches it by")
    return parser


def _json(text: str) -> dict[str, Any]:
    try:
        return load_object(text)
    except LineError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def shape(settings: argparse.Namespace) -> Shape:
    """The model's shape: the preset's, with what the arguments change."""
    preset, norms = PRESETS[settings.preset], not settings.no_block_layernorm
    return replace(preset, seqlen=settings.seqlen or preset.seqlen, block_layernorm=norms, dropout=settings.dropout)


def users_own(settings: argparse.Namespace) -> tuple[dict[str, Any], DataEfficiency]:
    """--deepspeed-config without `curriculum_learning` and `data_efficiency`; and what these two ask of the trainer.
    Newer versions of DeepSpeed raise on the first of them. ConfigError names the file, and the key that can't be
    performed."""
    path = settings.deepspeed_config
    if path is None:
        return {}, DataEfficiency()
    try:
        config = load_object(read_regular(path).decode())
        seqlen, told = curriculum_learning(config), data_efficiency(config) or DataEfficiency()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (LineError, ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if seqlen is not None and told.seqlen is not None:
        raise ConfigError(f"{path}: curriculum_learning and data_efficiency both pace the sequence length; leave one")
    if seqlen is not None:
        told = replace(told, seqlen=seqlen)
    performed = ("curriculum_learning", "data_efficiency")
    return {key: value for key, value in config.items() if key not in performed}, told


def deepspeed_config(
    settings: argparse.Namespace, own: dict[str, Any], batch_size: BatchSizeSchedule, world_size: int
) -> dict[str, Any]:
    """The JSON for deepspeed.initialize, the user's own laid over it. ConfigError when the batch does not divide."""
    least = math.gcd(batch_size.start, batch_size.increment) if batch_size.warms_up else batch_size.full
    micro = settings.micro_batch or least // world_size
    if not micro or settings.global_batch % (micro * world_size):
        raise ConfigError(
            f"--global-batch {settings.global_batch} should be a multiple of {world_size} ranks x {micro} samples"
        )
    if batch_size.start < micro * world_size:
        raise ConfigError(
            f"a batch that begins with {batch_size.start} samples does not fill {world_size} ranks x {micro} samples"
        )
    config: dict[str, Any] = {
        "train_batch_size": settings.global_batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_clipping": settings.clip,
        "steps_per_print": 10**9,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": settings.lr,
                "betas": [settings.beta1, settings.beta2],
                "eps": settings.eps,
                "weight_decay": settings.weight_decay,
                "torch_adam": not settings.fused_adam,
            },
        },
        "zero_optimization": {"stage": settings.zero},
    }
    if settings.precision != "fp32":
        config[settings.precision] = {"enabled": True}
    config |= own
    json.dumps(config)  # what can't be JSON is no DeepSpeed configuration
    return config
