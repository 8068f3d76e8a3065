"""What a checkpoint holds beside weights and optimizer, so that a resume is exact."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sentinel.vocabulary.codec import Form, fields_of, read
from sentinel.vocabulary.errors import CheckpointError, OverridesError
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.parking import ResumeRequest, memory_tag, step_in_memory
from trainer_hooks.data.shards import written
from trainer_hooks.generators import rng_state
from trainer_hooks.in_memory.targets import MemoryTargets
from trainer_hooks.restart import Decisions

_FORM = Form(error=CheckpointError)


@dataclass(slots=True, kw_only=True)
class Progress(Decisions):
    """How far the run is: the client state, but for the RNG, as JSON: an untrusting reader needs no class of ours."""

    step: int = 0
    consumed_samples: int = 0
    consumed_tokens: int = 0
    warmup: Mapping[str, Any] | None = None  # Of the sequence length: what SeqlenWarmup.state() gave
    # Tokens that each layer has seen, first to last; None is consumed_tokens for all of them.
    layer_tokens: tuple[int, ...] | None = None
    # Of the metrics that pace the data: which ones, and where their order stands; None without.
    curriculum: Mapping[str, Any] | None = None


def save(engine: Any, folder: Path, progress: Progress) -> str:
    """Saves engine and progress as global_stepN, then Megatron's tracker file; returns the tag. Called on all ranks."""
    tag = f"global_step{progress.step}"
    engine.save_checkpoint(str(folder), tag=tag, client_state=client_state_of(progress))
    if torch.distributed.get_rank() == 0:
        number = str(progress.step).encode()
        written(folder / "latest_checkpointed_iteration.txt", lambda file: file.write(number))
    return tag


def client_state_of(progress: Progress) -> dict[str, Any]:
    """What is saved beside the engine's state; not of the progress as it goes on, but as it is now."""
    return {"sentinel": deepcopy(fields_of(progress)), "rng": rng_state()}


def load(
    engine: Any, folder: Path, memory: MemoryTargets | None = None, step: int | None = None
) -> tuple[Progress, dict[str, Any] | None]:
    """Progress and RNG state of the checkpoint that `latest` names; a fresh Progress when there is no `latest`.
    CheckpointError when `latest` is torn or names what is not there: training from scratch over it would be worse.
    With `step` those of that state in memory, which stays as it is; else none is kept any more."""
    if step is not None:
        if memory is None:
            raise CheckpointError(f"{memory_tag(step)} can't be loaded: no state is kept in memory")
        state = deepcopy(dict(memory.restore(engine, step)))
        return progress_of(state), state["rng"]
    if memory is not None:
        memory.forget()
    tag = named(folder)
    if tag is None:
        return Progress(), None
    path, client_state = engine.load_checkpoint(str(folder), tag=tag)
    if path is None or "sentinel" not in client_state:
        raise CheckpointError(f"{folder / tag} is not a checkpoint of this trainer")
    return progress_of(client_state), client_state["rng"]


def named(folder: Path) -> str | None:
    """The tag of the checkpoint that `latest` names; None where there is no `latest`. CheckpointError where that names
    what is not there."""
    latest = folder / "latest"
    if not latest.exists():
        return None
    tag = latest.read_text(encoding="utf-8", errors="replace").strip()
    if not tag or "/" in tag or not (folder / tag).is_dir():
        there = ", ".join(sorted((p.name for p in folder.glob("global_step*")), key=len)[-3:]) or "none"
        raise CheckpointError(f"{latest} names {tag!r}, which is no checkpoint; the last ones are {there}")
    return tag


def progress_of(client_state: Mapping[str, Any]) -> Progress:
    """What `save` has put into a checkpoint's client state. CheckpointError where it can't be read."""
    return read(Progress, client_state["sentinel"], "the checkpoint's client state", _FORM)


def check_target(resume: ResumeRequest, tag: str | None, overrides: Overrides | None) -> None:
    """Raises where what is about to be loaded is not what RESUME says: then it may be of a half-made rollback."""
    if step_in_memory(resume.target) is None and tag != resume.target:
        raise CheckpointError(f"RESUME is to {resume.target or 'step 0'}, and `latest` names {tag or 'nothing'}")
    rollback = None if overrides is None else overrides.rollback
    if rollback != resume.rollback:
        raise OverridesError(f"RESUME is for {resume.rollback}, and overrides.json is of {rollback or 'none'}")
