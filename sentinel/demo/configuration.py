"""The demo's run: the trainer's command and the sentinel's configuration, as a person would write them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sentinel.config.toml import rung_text
from sentinel.plan.choose.ladder import Rung
from sentinel.vocabulary.numbers import dump_json

Restarts = Literal["auto", "in_place", "job"]  # As [policy] restart

LANGUAGE = "language.bin"
VOCABULARY = 128  # letters of the made-up language, and the gap between its words
_RESEED = Rung(name="reseed", hypothesis="the order of the data did it", reseed=True)
_SLW = "long sequences are too much for weights this young"
_RATE = "this model does not bear this learning rate"
_SCRATCH = "the weights of the earlier checkpoint are part of the divergence"
_LADDER = (
    _RESEED,
    Rung(name="reseed + SLW", hypothesis=_SLW, reseed=True, seqlen_start=8),
    Rung(
        name="earlier + reseed + LR / 8", hypothesis=_RATE, target="before_risky_window", reseed=True, lr_factor=0.125
    ),
    Rung(name="scratch + reseed + LR / 8", hypothesis=_SCRATCH, target="scratch", reseed=True, lr_factor=0.125),
)
_LADDER_WITH_LAYERNORMS = (
    _RESEED,
    Rung(name="reseed + LR / 4", hypothesis=_RATE, reseed=True, lr_factor=0.25),
    Rung(name="scratch + reseed + LR / 4", hypothesis=_SCRATCH, target="scratch", reseed=True, lr_factor=0.25),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What decides whether the demo's run diverges, beside its seed."""

    lr: float  # peak learning rate
    lr_warmup: int  # steps
    steps: int

    global_batch: int = 16

    margin_steps: int = 10  # from the onset back to the target
    # In the blocks. With them the model diverges on the made-up language alone, at half the length.
    layernorms: bool = False
    rungs: tuple[Rung, ...] = _LADDER  # of its ladder


# Eight times the LR at which this model trains well. It diverges before the LR is at its peak, whatever the vector
# instructions of the CPU: benchmarks/demo_divergence.py counts seeds.
WITHOUT_LAYERNORMS = Recipe(lr=3e-2, lr_warmup=60, steps=240)
# The model of docs/STABILITY.md whose attention logits grow, as large ones do.
WITH_LAYERNORMS = Recipe(
    lr=0.13,
    lr_warmup=520,
    steps=700,
    global_batch=8,
    margin_steps=60,
    layernorms=True,
    rungs=_LADDER_WITH_LAYERNORMS,
)
STEPS = WITHOUT_LAYERNORMS.steps


def trainer_command(folder: Path, seed: int, recipe: Recipe = WITHOUT_LAYERNORMS) -> list[str]:
    """The reference trainer at a learning rate that is too high: on its own it diverges. Nothing is injected, and no
    step is given at which it diverges."""
    arguments = {
        "--preset": "tiny",
        "--seed": seed,
        "--global-batch": recipe.global_batch,
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
    if recipe.layernorms:
        arguments |= {"--seqlen": 64, "--data": folder / LANGUAGE, "--vocabulary": VOCABULARY}
    words = [str(word) for pair in arguments.items() for word in pair]
    model = [] if recipe.layernorms else ["--no-block-layernorm"]
    return [sys.executable, "-m", "trainer_hooks.gpt", *model, *words]


def write_configuration(
    folder: Path, seed: int, recipe: Recipe = WITHOUT_LAYERNORMS, restart: Restarts = "auto"
) -> Path:
    command = ",\n    ".join(dump_json(word) for word in trainer_command(folder, seed, recipe))
    path = folder / "demo.toml"
    about = {"command": command, "margin_steps": recipe.margin_steps, "hold_steps": recipe.steps}
    about["restart"] = "" if restart == "auto" else f'restart = "{restart}"\n'
    path.write_text("\n".join((_TOML.format(**about), *map(rung_text, recipe.rungs))), encoding="utf-8")
    write_data(folder, recipe)
    return path


def write_data(folder: Path, recipe: Recipe) -> None:
    """What the trainer of this recipe reads, where it is not Python's library."""
    if recipe.layernorms:
        made_up(seed=1, words=300).astype(np.uint16).tofile(folder / LANGUAGE)


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
margin_steps = {margin_steps}
rollback_budget = 5
hold_steps = {hold_steps}
restart_on_crash = true
{restart}"""


def made_up(*, seed: int, words: int, length: int = 1_000_000) -> NDArray[np.int64]:
    """A language that is the same everywhere: a small GPT with LayerNorms diverges on it, and not on Python's library.
    Words of two to six letters, by Zipf's law, each state of a hidden chain of 12 with an order of its own."""
    rng = np.random.default_rng(seed)
    lexicon = [np.append(rng.integers(1, VOCABULARY, rng.integers(2, 7)), 0) for _ in range(words)]
    chance = 1 / np.arange(1, words + 1)
    chance /= chance.sum()
    orders = [rng.permutation(words) for _ in range(12)]
    count = length // 4
    ranks = rng.choice(words, count, p=chance)
    turns = rng.random(count) < 0.1
    states = np.cumsum(np.where(turns, rng.integers(1, 12, count), 0)) % 12
    said = [lexicon[orders[s][r]] for s, r in zip(states, ranks, strict=True)]
    return np.concatenate(said)[:length].astype(np.int64)
