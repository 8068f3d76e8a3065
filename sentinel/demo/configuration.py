"""The demo's run: the trainer's command and the sentinel's configuration, as a person would write them."""

from __future__ import annotations

import sys
from pathlib import Path

from sentinel.vocabulary.numbers import dump_json

__all__ = ["STEPS", "trainer_command", "write_configuration"]

STEPS = 240


def trainer_command(folder: Path, seed: int) -> list[str]:
    """The reference trainer without block LayerNorms, at a learning rate that is too high: on its own it diverges.

    Nothing is injected, and nothing says when. The LR is ten times what this model bears once its variance settles.
    """
    arguments = {
        "--preset": "tiny",
        "--seed": seed,
        "--global-batch": 16,
        "--lr": 1.5e-2,
        "--lr-warmup": 20,
        "--steps": STEPS,
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


def write_configuration(folder: Path, seed: int) -> Path:
    """Writes the run's TOML; returns its path."""
    command = ",\n    ".join(dump_json(word) for word in trainer_command(folder, seed))
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

[judge]
patience_steps = 30

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
name = "earlier + reseed + LR warmup x8"
hypothesis = "the learning rate rose faster than Adam's variance could settle"
target = "before_risky_window"
reseed = true
lr_warmup_factor = 8

[[policy.ladder]]
name = "LR warmup x15"
hypothesis = "the same, and eight times was not enough"
target = "before_risky_window"
reseed = true
lr_warmup_factor = 15

[[policy.ladder]]
name = "LR / 6"
hypothesis = "this model does not bear this learning rate at all"
target = "before_risky_window"
reseed = true
lr_factor = 0.16666666666666666
"""
