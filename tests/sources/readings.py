"""What the tests of the readers compare: a source's chunks as one plain value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentinel.judge.readings import Readings
from sentinel.sources import parquet_child
from sentinel.sources.arrow_tables import UnreadableError
from sentinel.sources.column_source import ColumnSource
from sentinel.sources.opening import open_columns

NAN = "nan"
"""Stands for nan in what is compared, since nan is not equal to itself."""


def only(path: Path, columns: Mapping[str, str] | None = None) -> ColumnSource:
    """The one source that the path holds."""
    (source,) = open_columns(path, columns or {})
    return source


def told(chunks: Iterable[Readings]) -> list[dict[str, Any]]:
    """Each sample as a dict of what was measured: attempt, step, the columns, `skipped` where it was."""
    samples = []
    for chunk in chunks:
        for at in range(len(chunk)):
            one: dict[str, Any] = {"attempt": chunk.attempt, "step": int(chunk.steps[at])}
            for name, values in chunk.columns.items():
                assert len(values) == len(chunk)
                if name not in chunk.measured or chunk.measured[name][at]:
                    value = float(values[at])
                    one[name] = NAN if math.isnan(value) else value
            if chunk.skipped is not None and chunk.skipped[at]:
                one["skipped"] = True
            samples.append(one)
    return samples


def column(samples: list[dict[str, Any]], *names: str) -> list[Any]:
    """The values of one field, None where it was not measured; of several fields, tuples."""
    rows = [tuple(sample.get(name) for name in names) for sample in samples]
    return [row[0] for row in rows] if len(names) == 1 else rows


def unpacked_here(path: Path, columns: Sequence[str] = ()) -> Iterator[Any]:
    """Stands for `arrow_tables._unpacked` where a test reads a great many tables: without the process of its own."""
    try:
        yield from parquet_child.batches(str(path), columns)
    except parquet_child.DAMAGE as error:
        raise UnreadableError(str(error)) from error
