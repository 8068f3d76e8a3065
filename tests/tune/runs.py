"""A small run to be tuned: so little text that a long stay at short lengths is learnt by heart."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from pathlib import Path

SENTINEL = [sys.executable, "-m", "sentinel"]


def trainer(folder: Path, *more: str) -> list[str]:
    """Like benchmarks/tune_slw.py's; with T of 640 its validation perplexity fluctuates by step 36."""
    data = folder / "text.txt"
    data.write_text(inspect.getsource(argparse)[:8200])
    words = "--preset tiny --seqlen 128 --global-batch 16 --lr 4e-3 --lr-warmup 10 --steps 400 --validation-share 0.5"
    return [sys.executable, "-m", "trainer_hooks.gpt", *words.split(), "--data", str(data), *more]


def configuration(folder: Path, command: list[str], tune: dict[str, object], **launcher: object) -> Path:
    """Writes the run's TOML; returns its path."""
    given = {"starts": [8], "durations": [40, 80, 640], "validate_every": 4, "horizon_steps": 48} | tune
    tables = {
        "run": {"name": "small", "checkpoints": "checkpoints", "state_dir": "state", "tensorboard": "tensorboard"},
        "launcher": {"command": command} | launcher,
        "watch": {"poll_interval_s": 0.1},
        "tune": given,
    }
    lines = [f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in t.items()) for name, t in tables.items()]
    path = folder / "small.toml"
    path.write_text("\n".join(lines))
    return path


def environment() -> dict[str, str]:
    return dict(os.environ, OMP_NUM_THREADS="1")
