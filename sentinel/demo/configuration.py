"""The demo's run: the trainer's command and the sentinel's configuration, as a person would write them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from sentinel.vocabulary.numbers import dump_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What decides whether the demo's run diverges, beside its seed."""

    lr: float
    """Peak learning rate."""

    lr_warmup: int
    """Steps."""

    steps: int


DEMO = Recipe(lr=3e-2, lr_warmup=60, steps=240)
"""Eight times the LR at which this model trains well. It diverges before the LR is at its peak, whatever the vector
instructions of the CPU: benchmarks/demo_divergence.py counts seeds."""

STEPS = DEMO.steps


def trainer_command(folder: Path, seed: int, recipe: Recipe = DEMO) -> list[str]:
    """The reference trainer without block LayerNorms, at a learning rate that is too high: on its own it diverges.

    Nothing is injected, and no step is given at which it diverges.
    """
    arguments = {
        "--preset": "tiny",
        "--seed": seed,
        "--global-batch": 16,
        "--lr": recipe.lr,
        "--lr-warmup": recipe.lr_warmup,
        "--steps": recipe.steps,
        "--zero": 0,
        "--save-interval": 10,
        "--validate-every": 20,
        "--save": folder / "checkpoints",
        "--tensorboard": folder / "tensorboard",
        "--state-dir": folder / "state",
        "--run": "demo",
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    return [sys.executable, "-m", "trainer_hooks.gpt", "--no-block-layernorm", *words]


def write_configuration(folder: Path, seed: int, recipe: Recipe = DEMO) -> Path:
    command = ",\n    ".join(dump_json(word) for word in trainer_command(folder, seed, recipe))
    path = folder / "demo.toml"
    path.write_text(_TOML.format(command=command), encoding="utf-8")
    return path


_TOML = """\
[run]
name = "demo"
checkpoints = "checkpoints"
state_dir = "state"
tensorboard = "tensorboard"

[launcher]
kind = "local"
command = [
    {command},
]
stop_grace_s = 20

[watch]
poll_interval_s = 0.4

[policy]
mode = "act"
margin_steps = 10
rollback_budget = 5
hold_steps = 240
restart_on_crash = true

[[policy.ladder]]
name = "reseed"
hypothesis = "the order of the data did it"
reseed = true

[[policy.ladder]]
name = "reseed + SLW"
hypothesis = "long sequences are too much for weights this young"
reseed = true
seqlen_start = 8

[[policy.ladder]]
name = "earlier + reseed + LR / 8"
hypothesis = "this model does not bear this learning rate"
target = "before_risky_window"
reseed = true
lr_factor = 0.125

[[policy.ladder]]
name = "scratch + reseed + LR / 8"
hypothesis = "the weights of the earlier checkpoint are part of the divergence"
target = "scratch"
reseed = true
lr_factor = 0.125
"""
