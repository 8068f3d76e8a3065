"""Parquet tables, by the names of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sentinel.bounded import open_regular
from sentinel.sources.column_names import Naming, no_loss, resolve
from sentinel.sources.column_source import CHUNK_ROWS, ColumnSource, Tally
from sentinel.sources.table_rows import cells_of_arrow
from sentinel.sources.table_source import Batch, table_source
from sentinel.vocabulary.errors import ConfigError

__all__ = ["open_parquet"]

_MAGIC = b"PAR1"
_READ_BYTES = 1 << 20
_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)
"""What pyarrow raises for a damaged file; MemoryError where a length in it is nonsense is an ArrowException."""


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
        with _opened(path) as table:
            names = [_name(table, number) for number in range(len(table.schema))]
    except _DAMAGE as error:
        raise ConfigError(f"{path} is a Parquet file that can't be read: {str(error)[:300]}") from error
    naming = resolve(names, asked, str(path))
    if "loss" not in naming.columns:
        raise no_loss(str(path), names)
    return table_source(path, "parquet", lambda tally: _batches(path, naming, tally), naming.notes_of_rows)


def _opened(path: Path) -> Any:
    return pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False)


def _name(table: Any, number: int) -> str:
    """A column's name; of a column within a structure the names on the way to it, with a dot between."""
    return str(table.schema.column(number).path)


def _batches(path: Path, naming: Naming, tally: Tally) -> Iterator[Batch]:
    given, wanted = 0, sorted(set(naming.columns.values()))
    try:
        with _opened(path) as table:
            for batch in table.iter_batches(CHUNK_ROWS, columns=wanted, use_threads=False):
                columns = {ours: cells_of_arrow(_column(batch, theirs)) for ours, theirs in naming.columns.items()}
                yield columns, len(batch), range(given + 1, given + 1 + len(batch)).__getitem__
                given += len(batch)
    except _DAMAGE as error:
        tally.cannot_read(given + 1, f"from this row on the file can't be read: {str(error)[:200]}")


def _column(batch: Any, name: str) -> Any:
    if name in batch.schema.names:
        return batch.column(name)
    outer, *inner = name.split(".")
    array = batch.column(outer)
    for part in inner:
        if not pa.types.is_struct(array.type):
            return array
        array = pc.struct_field(array, part)
    return array
