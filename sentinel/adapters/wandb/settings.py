"""Where a run is in W&B: the `[wandb]` table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import Range

__all__ = ["WandbRun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbRun:
    """The `[wandb]` table: where the trainer logs the run in Weights & Biases, for `sentinel dashboards push --wandb`.
    The key is in the environment's WANDB_API_KEY, or in a file. The trainer's run is read and never written to."""

    entity: str | None = None
    """The user or team that the project belongs to."""

    project: str | None = None
    """The project, as its address has it: wandb.ai/ENTITY/PROJECT."""

    run_id: str | None = None
    """The end of the run's address; by default all runs of the project that are called as [run] name says."""

    loss: str | None = None
    """What the trainer logs the loss as, where that is not found by itself: "train/loss"."""

    step: str | None = None
    """What it logs the optimizer step as, likewise; without any it is W&B's own _step."""

    api_key_file: Path | None = None
    """Holds the API key; without it, WANDB_API_KEY does."""

    url: str | None = None
    """Of a W&B server of one's own; default is the library's."""

    timeout_s: Annotated[float, Range(above=0, most=600)] = 20.0
    """Seconds for one request, and for what was sent to be seen there."""

    def __post_init__(self) -> None:
        for key in ("entity", "project", "run_id"):
            value = getattr(self, key)
            if value is not None:
                checked_name(value, key)
        if (self.entity is None) != (self.project is None):
            raise ConfigError("entity and project belong together")
