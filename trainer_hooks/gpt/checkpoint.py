"""What a checkpoint holds beside weights and optimizer, so that a resume is exact."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sentinel.vocabulary.errors import CheckpointError
from trainer_hooks.data.shards import written
from trainer_hooks.gpt.order import Reseed


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far the run is, and by which decisions it got there. The client state, but for the RNG."""

    step: int = 0
    consumed_samples: int = 0
    consumed_tokens: int = 0
    reseeds: tuple[Reseed, ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()
    """What was left out of the data: SkippedRanges as JSON, so that an untrusting reader needs no class of ours."""

    moments_reset_steps: tuple[int, ...] = ()
    """The steps after which Adam's moments were set to 0."""

    attempt: int | None = None
    """The attempt that saved it; None from scratch."""

    warmup: dict[str, Any] | None = None
    """Of the sequence length: what SeqlenWarmup.state() gave."""

    layer_tokens: list[int] | None = None
    """Tokens that each layer has seen, first to last; None is consumed_tokens for all of them."""

    curriculum: dict[str, Any] | None = None
    """Of the metrics that pace the data: which ones, and where their order stands; None without."""

    loss_minimum: list[tuple[int | None, float]] = field(default_factory=list)
    applied_once: tuple[str, ...] = ()
    """Ids of the one-shot overrides that were applied."""


def save(engine: Any, folder: Path, progress: Progress) -> str:
    """Saves engine and progress as global_stepN, then Megatron's tracker file; returns the tag. Called on all ranks."""
    tag = f"global_step{progress.step}"
    client_state = {
        "sentinel": {name: getattr(progress, name) for name in Progress.__dataclass_fields__},
        "rng": rng_state(),
    }
    engine.save_checkpoint(str(folder), tag=tag, client_state=client_state)
    if torch.distributed.get_rank() == 0:
        number = str(progress.step).encode()
        written(folder / "latest_checkpointed_iteration.txt", lambda file: file.write(number))
    return tag


def load(engine: Any, folder: Path) -> tuple[Progress, dict[str, Any] | None]:
    """Progress and RNG state of the checkpoint that `latest` names; a fresh Progress when there is no `latest`.
    CheckpointError when `latest` is torn or names what is not there: training from scratch over it would be worse."""
    latest = folder / "latest"
    if not latest.exists():
        return Progress(), None
    tag = latest.read_text(encoding="utf-8", errors="replace").strip()
    if not tag or "/" in tag or not (folder / tag).is_dir():
        there = ", ".join(sorted((p.name for p in folder.glob("global_step*")), key=len)[-3:]) or "none"
        raise CheckpointError(f"{latest} names {tag!r}, which is no checkpoint; the last ones are {there}")
    path, client_state = engine.load_checkpoint(str(folder), tag=tag)
    if path is None or "sentinel" not in client_state:
        raise CheckpointError(f"{folder / tag} is not a checkpoint of this trainer")
    return Progress(**client_state["sentinel"]), client_state["rng"]


def rng_state() -> dict[str, Any]:
    """State of torch's, numpy's and Python's generators, and the accelerator's where there is one."""
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Sets what rng_state has read."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
