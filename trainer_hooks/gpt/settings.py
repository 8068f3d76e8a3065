"""The trainer's arguments, as a person gives them, and the DeepSpeed configuration that they make."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentinel.vocabulary.errors import ConfigError, OverridesError
from sentinel.vocabulary.numbers import load_object
from sentinel.vocabulary.overrides import Free
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from trainer_hooks.gpt.model import PRESETS, Shape

__all__ = ["deepspeed_config", "lr_schedule", "parse", "seqlen_schedule", "shape", "with_free_options"]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    parser = _parser()
    settings = parser.parse_args(argv)
    if settings.steps is None and settings.tokens is None:
        parser.error("say where the run ends: --steps or --tokens")
    if settings.lr_decay is None and (settings.steps if settings.lr_unit == "steps" else settings.tokens) is None:
        parser.error(f"--lr-decay is needed: the run does not end by {settings.lr_unit}, which the LR counts in")
    if settings.state_dir is None:
        settings.state_dir = Path(os.environ.get("SENTINEL_STATE_DIR") or Path(".sentinel") / settings.run)
    return settings


def with_free_options(settings: argparse.Namespace, free: Free | None) -> argparse.Namespace:
    """The settings with the free-form options of overrides.json. OverridesError for any that this trainer won't take.

    Environment variables would have to be set before the process starts, so it takes none.
    """
    if free is None:
        return settings
    if free.environment:
        raise OverridesError(f"overrides.json: environment: this trainer takes none, so not {min(free.environment)!r}")
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer_hooks.gpt", description=__doc__, allow_abbrev=False)
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
    opt.add_argument("--lr-decay", type=int, help="where the cosine ends, in --lr-unit; default is the run's end")
    opt.add_argument("--lr-unit", choices=("steps", "tokens"), default="steps")
    opt.add_argument("--beta1", type=float, default=0.9)
    opt.add_argument("--beta2", type=float, default=0.999)
    opt.add_argument("--eps", type=float, default=1e-8)
    opt.add_argument("--weight-decay", type=float, default=0.01)
    opt.add_argument("--clip", type=float, default=1.0, help="gradient clipping; 0 is none")
    batch = parser.add_argument_group("batch, length and end")
    batch.add_argument("--global-batch", type=int, default=16, help="samples per step, over all ranks")
    batch.add_argument("--micro-batch", type=int, help="samples per rank and pass; default: no accumulation")
    batch.add_argument("--seqlen-start", type=int, help="switch sequence length warmup on, from this length")
    batch.add_argument("--seqlen-warmup-steps", type=int, default=0, help="steps from start to full length")
    batch.add_argument("--steps", type=int, help="end after this many steps")
    batch.add_argument("--tokens", type=int, help="end after this many tokens")
    batch.add_argument("--validate-every", type=int, default=0, help="steps; 0 is never")
    batch.add_argument("--validation-batches", type=int, default=4)
    engine = parser.add_argument_group("engine")
    engine.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    engine.add_argument("--zero", type=int, choices=range(4), default=0)
    engine.add_argument("--fused-adam", action="store_true", help="DeepSpeed's own Adam; its op is compiled once")
    engine.add_argument("--deepspeed-config", type=Path, help="JSON that is laid over the one made here")
    files = parser.add_argument_group("files")
    files.add_argument("--run", default="run", help="the run's name")
    files.add_argument("--state-dir", type=Path, help="default SENTINEL_STATE_DIR, else .sentinel/RUN")
    files.add_argument("--save", type=Path, default=Path("checkpoints"))
    files.add_argument("--save-interval", type=int, default=0, help="steps; 0 is never")
    files.add_argument("--tensorboard", type=Path)
    files.add_argument("--save-on-stop", action="store_true", help="save when asked to stop")
    files.add_argument("--stop-exit-code", type=int, default=0, help="exit code after SIGTERM or the KILL file")
    files.add_argument("--metrics-port", type=int, default=0, help="of /metrics; 0 is any free one")
    return parser


def shape(settings: argparse.Namespace) -> Shape:
    """The model's shape: the preset's, with what the arguments change."""
    preset = PRESETS[settings.preset]
    return Shape(
        layers=preset.layers,
        width=preset.width,
        heads=preset.heads,
        seqlen=settings.seqlen or preset.seqlen,
        block_layernorm=not settings.no_block_layernorm,
        dropout=settings.dropout,
    )


def lr_schedule(settings: argparse.Namespace) -> LrSchedule:
    """The LR schedule of the arguments, before any override."""
    end = settings.steps if settings.lr_unit == "steps" else settings.tokens
    return LrSchedule(
        peak=settings.lr,
        minimum=settings.lr_min,
        warmup=settings.lr_warmup,
        decay_start=settings.lr_warmup,
        decay_end=settings.lr_decay if settings.lr_decay is not None else end,
        unit=settings.lr_unit,
    )


def seqlen_schedule(settings: argparse.Namespace) -> SeqlenSchedule:
    """The sequence length's schedule of the arguments; without SLW it is full from the first step."""
    full = shape(settings).seqlen
    steps = settings.seqlen_warmup_steps if settings.seqlen_start else 0
    return SeqlenSchedule(start=min(settings.seqlen_start or full, full), full=full, total_steps=steps)


def deepspeed_config(settings: argparse.Namespace, world_size: int) -> dict[str, Any]:
    """The JSON for deepspeed.initialize. ConfigError when the batch does not divide."""
    micro = settings.micro_batch or settings.global_batch // world_size
    if not micro or settings.global_batch % (micro * world_size):
        raise ConfigError(
            f"--global-batch {settings.global_batch} should be a multiple of {world_size} ranks x {micro} samples"
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
    if settings.deepspeed_config is not None:
        try:
            config |= load_object(settings.deepspeed_config.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{settings.deepspeed_config}: {error.strerror}") from error
    json.dumps(config)  # what can't be JSON is no DeepSpeed configuration
    return config
