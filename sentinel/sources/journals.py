"""Metrics journals as columns, by the hundred thousand lines a second.

`sentinel.vocabulary.sample.decode` defines what is a sample and what is unreadable. A line in exactly the shape that
`encode` gives a sample goes through a faster, stricter decoder; every other line goes through `decode` itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.adapters.journal import NO_SAMPLE_LINE, decode_sample, journals_in
from sentinel.judge.readings import CARRIED, COLUMNS, Readings
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.file_bytes import Bytes, lines_of
from sentinel.sources.json_table import head_of_objects
from sentinel.sources.row_merge import readings_of
from sentinel.sources.table_rows import Rows, cells_of_values
from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.sample import KINDS, Sample, decode

_ATTEMPTS = "attempts"

_getters = {name: attrgetter(name) for name in ("global_step", "attempt", "skipped", *COLUMNS, *CARRIED)}


def open_journal(path: Path) -> ColumnSource | None:
    """The journal in a file; the journals of all attempts, where it is a state folder or its `attempts`."""
    if path.is_dir():
        folder = path / _ATTEMPTS if (path / _ATTEMPTS).is_dir() else path
        if not _journals_in(folder):
            return None
        return ColumnSource(
            path,
            "journal",
            lambda tally: (chunk for one in _journals_in(folder) for chunk in _chunks(one, f"{one.name}: ", tally)),
        )
    if not any(one.get("kind") in KINDS and "attempt" in one for one in head_of_objects(path)):
        return None
    return ColumnSource(path, "journal", lambda tally: _chunks(path, "", tally))


def journals_as_columns(state_dir: Path) -> ColumnSource:
    """The journals of a run's attempts; without a sample where none has begun."""
    found = open_journal(state_dir) if state_dir.is_dir() else None
    return found or ColumnSource(state_dir, "journal", lambda _: iter(()))


def _journals_in(folder: Path) -> list[Path]:
    try:
        return journals_in(folder)
    except OSError as error:
        raise ConfigError(f"{folder} can't be read: {error.strerror or error}") from error


def _chunks(path: Path, prefix: str, tally: Tally) -> Iterator[Readings]:
    number = 0
    with Bytes(path) as file:
        for lines in lines_of(file):
            samples: list[Any] = []
            for line in lines:
                number += 1
                try:
                    samples.append(decode_sample(line))  # type: ignore[arg-type]
                except NO_SAMPLE_LINE:
                    sample = _slowly(line, number, prefix, tally)
                    if sample is not None:
                        samples.append(sample)
            if samples:
                yield from readings_of(_rows(samples, tally.fields), tally.fields)
        if file.problem is not None:
            tally.cannot_read(number + 1, prefix + file.problem)


def _slowly(line: bytes | None, number: int, prefix: str, tally: Tally) -> Sample | None:
    """The sample that `decode` reads; None where the line is another record, which is kept, or unreadable."""
    try:
        if line is None:
            raise LineError("the line is too long")
        record = decode(line.decode("utf-8", "replace")) if line.strip() else None
    except LineError as error:
        tally.cannot_read(number, f"{prefix}{error}")
        return None
    if isinstance(record, Sample):
        return record
    if record is not None:
        tally.keep(record)
    return None


def _rows(samples: list[Any], names: tuple[str, ...]) -> Rows:
    cells = {name: cells_of_values(list(map(_getters[name], samples))) for name in (*names, "skipped")}
    return Rows(
        steps=np.array(list(map(_getters["global_step"], samples)), np.int64),
        attempts=np.array(list(map(_getters["attempt"], samples)), np.int64),
        values={name: found.values for name, found in cells.items()},
        there={name: found.there for name, found in cells.items()},
    )
