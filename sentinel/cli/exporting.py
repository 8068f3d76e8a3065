"""`export`: the samples of any source as a table in our names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path

import typer

from sentinel.adapters.export import SUFFIXES, Columns, write_table
from sentinel.judge.readings import CARRIED, COLUMNS, Readings, ends_of_descent
from sentinel.sources.column_source import ColumnSource
from sentinel.vocabulary.errors import ConfigError

__all__ = ["export"]


def export(source: ColumnSource, output: Path, *, only_descent: bool) -> int:
    """Reads it twice, in constant memory: what is there, and the samples. `only_descent`: see `descent`."""
    if output.suffix not in SUFFIXES:
        raise ConfigError(f"a table is a {', '.join(SUFFIXES)} file, not {output.name!r}")
    source.fields = (*COLUMNS, *CARRIED)
    columns, first_steps = Columns(), []
    for readings in _stretches(source):
        columns.note(readings)
        first_steps.append(int(readings.steps[0]))
    if not first_steps:
        raise ConfigError(f"{source.path} has no samples")
    output.parent.mkdir(parents=True, exist_ok=True)
    ends = ends_of_descent(first_steps) if only_descent else []
    written = write_table(output, columns.schema, _cut(source, ends))
    typer.echo(f"wrote {written} samples of {source.path} ({source.format}) to {output}")
    if source.unreadable:
        typer.echo(f"{source.unreadable} lines can't be read; `sentinel replay` shows the first of them", err=True)
    return 0


def _stretches(source: ColumnSource) -> Iterator[Readings]:
    return (readings for readings in source if len(readings))


def _cut(source: ColumnSource, ends: Sequence[int | None]) -> Iterator[Readings]:
    for readings, end in zip(_stretches(source), chain(ends, repeat(None)), strict=False):
        yield readings if end is None else readings.until(end)
