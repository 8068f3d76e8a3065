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
from sentinel.judge.readings import Readings
from sentinel.sources import parquet_child
from sentinel.sources.cells import cells_of_arrow, rows_of
from sentinel.sources.lanes import Stream
from sentinel.sources.names import Naming, no_loss, resolve
from sentinel.sources.source import FileSource, Tally
from sentinel.vocabulary.errors import ConfigError

__all__ = ["UnreadableError", "open_parquet"]

_MAGIC = b"PAR1"
_SHOWN = 300


class UnreadableError(Exception):
    """Why the file can't be read on, as a phrase."""


def open_parquet(path: Path, asked: Mapping[str, str]) -> FileSource | None:
    """The table, where the file is one by its first bytes.

    ConfigError when it is damaged where it says what it holds, or when nothing in it is a loss.
    """
    try:
        with open_regular(path) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
    try:
        names = [name for batch in _batches(path) for name in batch.column("name").to_pylist()]
    except UnreadableError as error:
        raise ConfigError(f"{path} is a Parquet file that can't be read: {error}") from error
    naming = resolve(names, asked, str(path))
    if "loss" not in naming.columns:
        raise no_loss(str(path), names)
    return FileSource(path, "parquet", lambda tally: _chunks(path, naming, tally))


def _batches(path: Path, columns: Sequence[str] = ()) -> Generator[Any]:
    """What `parquet_child.batches` gives, from a process of its own that is ended with this iterator."""
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


def _chunks(path: Path, naming: Naming, tally: Tally) -> Iterator[Readings]:
    stream, given = Stream(tally), 0
    for note in naming.notes:
        tally.note(note)
    if "step" not in naming.columns:
        tally.note("there is no column with the step: rows are numbered from 1")
    wanted = sorted(set(naming.columns.values()))
    try:
        with closing(_batches(path, wanted)) as batches:
            for batch in batches:
                columns = {ours: cells_of_arrow(batch.column(theirs)) for ours, theirs in naming.columns.items()}
                rows = rows_of(
                    columns, len(batch), given + 1, tally, range(given + 1, given + 1 + len(batch)).__getitem__
                )
                given += len(batch)
                yield from stream.push(rows)
    except UnreadableError as error:
        tally.cannot_read(given + 1, f"from this row on the file can't be read: {error}")
    yield from stream.finish()
