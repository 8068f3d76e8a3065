"""The `[wandb]` table, and a run of sentinel's own as it is to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import Range

Row = Mapping[str, Any]  # what was logged at one of W&B's steps, with its `_step` and `_timestamp`
JOB_TYPE = "incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbRun:
    """The `[wandb]` table: where the trainer logs the run in Weights & Biases, for `sentinel dashboards push --wandb`.
    The key is in the environment's WANDB_API_KEY, or in a file. The trainer's run is read and never written to, unless
    after_rollback is "rewind"."""

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

    after_rollback: Literal["off", "copy", "fork", "rewind"] = "off"
    """What a restarted job logs to; it is told by WANDB_RUN_ID. copy: a new run, with the history up to the target
    copied. fork: the server's fork. rewind: the same run, cut at the target; this writes to the trainer's run."""

    folder: Path | None = None
    """The trainer's `wandb` folder, where it logs offline: history is then copied from and to offline runs there."""

    def __post_init__(self) -> None:
        for key in ("entity", "project", "run_id"):
            value = getattr(self, key)
            if value is not None:
                checked_name(value, key)
        if (self.entity is None) != (self.project is None):
            raise ConfigError("entity and project belong together")
        if self.after_rollback != "off" and self.folder is None and self.project is None:
            raise ConfigError(f'after_rollback = "{self.after_rollback}" needs entity and project, or folder')
        if self.after_rollback in ("fork", "rewind") and self.folder is not None:
            raise ConfigError(f'after_rollback = "{self.after_rollback}" needs a server; with folder it is "copy"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A run of sentinel's own, as it is to be."""

    id: str
    name: str
    notes: str
    tags: Sequence[str]
    config: Mapping[str, str | int]  # what the table of runs is filtered and sorted by
    group: str | None = None
    job_type: str = JOB_TYPE
