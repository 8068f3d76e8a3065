"""Parquet tables, by the names of their columns: unpacked by a process of its own, since a page may become anything."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from sentinel.bounded import open_regular
from sentinel.sources import parquet_child
from sentinel.sources.column_names import Naming, no_loss, resolve
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.table_rows import cells_of_arrow
from sentinel.sources.table_source import Batch, table_source
from sentinel.vocabulary.errors import ConfigError

__all__ = ["UnreadableError", "open_parquet"]

_MAGIC = b"PAR1"
_SHOWN = 300


class UnreadableError(Exception):
    """Why the file can't be read on, as a phrase."""


def open_parquet(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The table, where the file is one by its first bytes.

    ConfigError when its list of columns is damaged, or when no column is a loss.
    """
    try:
        with open_regular(path) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
    try:
        names = [name for batch in _unpacked(path) for name in batch.column("name").to_pylist()]
    except UnreadableError as error:
        raise ConfigError(f"{path} is a Parquet file that can't be read: {error}") from error
    naming = resolve(names, asked, str(path))
    if "loss" not in naming.columns:
        raise no_loss(str(path), names)
    return table_source(path, "parquet", lambda tally: _batches(path, naming, tally), naming.notes_of_rows)


def _unpacked(path: Path, columns: Sequence[str] = ()) -> Generator[Any]:
    """What `parquet_child.batches` gives, from a process of its own that ends with this iterator.

    Record batches of the columns; without columns one batch of all names, as `name`.
    """
    command = [sys.executable, "-P", parquet_child.__file__, str(path), *columns]
    alone = os.environ | {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}  # threads reserve address space
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=alone) as child,
    ):
        problem = ""
        try:
            yield from pa.ipc.open_stream(child.stdout)
        except pa.ArrowException as error:  # the stream was cut off
            problem = str(error)
        except GeneratorExit:
            child.kill()
            raise
        if child.wait() != 0 or problem:
            said.seek(0)
            raise UnreadableError(_told(child.returncode, said.read(_SHOWN).decode("utf-8", "replace")) or problem)


def _told(code: int, said: str) -> str:
    """Why the process gave up; one that was killed by its limits could not say it."""
    if code < 0:
        return f"it takes more time or memory than a table of its size may (signal {-code})"
    return " ".join(said.split())


def _batches(path: Path, naming: Naming, tally: Tally) -> Iterator[Batch]:
    given, wanted = 0, sorted(set(naming.columns.values()))
    try:
        with closing(_unpacked(path, wanted)) as batches:
            for batch in batches:
                columns = {ours: cells_of_arrow(batch.column(theirs)) for ours, theirs in naming.columns.items()}
                yield columns, len(batch), range(given + 1, given + 1 + len(batch)).__getitem__
                given += len(batch)
    except UnreadableError as error:
        tally.cannot_read(given + 1, f"from this row on the file can't be read: {error}")
