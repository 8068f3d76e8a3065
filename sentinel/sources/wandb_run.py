"""A run in W&B as a series of samples, and the project that it is in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.adapters.paging.secret import Secret
from sentinel.adapters.wandb.settings import WandbRun
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.table_source import Object, source_of_objects
from sentinel.vocabulary.errors import ConfigError

if TYPE_CHECKING:  # its library is not in every installation
    from sentinel.adapters.wandb.api import Wandb

__all__ = ["PREFIX", "project_of", "source_in_wandb"]

PREFIX = "wandb:"
_KEY = "WANDB_API_KEY"
_AT_ONCE = 1 << 12


def source_in_wandb(name: str, columns: Mapping[str, str]) -> ColumnSource:
    """The run of `wandb:ENTITY/PROJECT/RUN-ID`, with the key of the environment."""
    parts = name.removeprefix(PREFIX).split("/")
    if len(parts) != 3 or not all(parts):
        raise ConfigError(f"{name} should look like {PREFIX}ENTITY/PROJECT/RUN-ID, the end of the run's address")
    entity, project, run_id = parts
    there = project_of(WandbRun(entity=entity, project=project, run_id=run_id))

    def batches(_: Tally) -> Iterator[tuple[Sequence[Object], Sequence[int]]]:
        rows, given = there.rows(run_id), 0
        while batch := [dict(row) for row in islice(rows, _AT_ONCE)]:
            yield batch, range(given + 1, given + len(batch) + 1)
            given += len(batch)

    return source_of_objects(Path(name), "wandb", batches, columns)


def project_of(of: WandbRun) -> Wandb:
    """The project that the table names, with the key of its file or of the environment."""
    try:
        from sentinel.adapters.wandb.api import Wandb

        env = None if of.api_key_file is not None else _KEY
        key = Secret(what="api_key", env=env, file=of.api_key_file, environ=os.environ).read()
        return Wandb(of.entity or "", of.project or "", key, url=of.url, timeout_s=of.timeout_s)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'training-sentinel[wandb]'") from error
