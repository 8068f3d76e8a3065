"""Which of the formats in columns a path holds: found by its content, by its name only where that leaves it open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sentinel.sources.csv_table import open_csv
from sentinel.sources.journals import open_journal
from sentinel.sources.json_table import open_json_lines
from sentinel.sources.parquet_table import open_parquet
from sentinel.sources.source import ColumnSource
from sentinel.sources.tensorboard_scalars import open_tensorboard
from sentinel.sources.trainer_state import open_trainer_state
from sentinel.sources.wandb_file import open_wandb

__all__ = ["open_columns", "open_table"]


def open_columns(path: Path, columns: Mapping[str, str]) -> list[ColumnSource]:
    """The series that a file or folder holds in columns; empty where it holds none, such as a log of lines.

    `columns` says which of the source's names is which field, where that is not found by itself: loss to train/loss.
    One source for a state folder or a journal, a trainer state or the folder of its checkpoints, a W&B run, a table;
    for a TensorBoard folder one for each folder in it that has a loss. ConfigError when the path can't be read, when a
    column asked for is not there, or when nothing in it is known to be a loss.
    """
    if path.is_dir():
        if (journal := open_journal(path)) is not None:
            return [journal]
        if (state := open_trainer_state(path, columns)) is not None:
            return [state]
        if (logged := open_wandb(path, columns)) is not None:
            return [logged]
        return [*open_tensorboard(path, columns)]
    table = open_table(path, columns)
    return [table] if table is not None else [*open_tensorboard(path, columns)]


def open_table(path: Path, columns: Mapping[str, str]) -> ColumnSource | None:
    """A journal, CSV, Parquet, JSONL, .wandb or trainer_state.json; None where the file is none of these."""
    return (
        open_parquet(path, columns)
        or open_wandb(path, columns)
        or open_journal(path)
        or open_trainer_state(path, columns)
        or open_json_lines(path, columns)
        or open_csv(path, columns)
    )
