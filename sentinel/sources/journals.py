"""Metrics journals as columns, by the hundred thousand lines a second.

`sentinel.vocabulary.sample.decode` defines what is a sample and what is unreadable. A line in exactly the shape that
`encode` gives a sample goes through a faster, stricter decoder; every other line goes through `decode` itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from sentinel.judge.readings import CARRIED, COLUMNS, Readings
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.file_bytes import Bytes, lines_of
from sentinel.sources.json_table import head_of_objects
from sentinel.sources.row_merge import readings_of
from sentinel.sources.table_rows import Rows, cells_of_values
from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.numbers import LARGEST_WHOLE, LATEST_UNIX_S
from sentinel.vocabulary.sample import Sample, decode

__all__ = ["open_journal"]

_NAME = re.compile(r"\d{4,}\.jsonl")
_KINDS = {"sample", "run_started", "layer_variance", "validation", "checkpoint_saved", "run_finished"}
_ATTEMPTS = "attempts"

Number = float | Literal["nan", "inf", "-inf"]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_WHOLE)]
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=LATEST_UNIX_S)] | Literal["nan"]


def _line_type() -> type[Any]:
    """A sample's line: field for field a Sample."""
    kinds: dict[str, Any] = {"int": Count, "float": Number, "bool": bool}
    columns: list[Any] = [("kind", Literal["sample"])]
    for each in fields(Sample):
        kind, _, optional = str(each.type).partition(" | ")
        read = Seconds if each.name == "time_unix_s" else kinds[kind]
        default = () if each.default is MISSING else (each.default,)
        columns.append((each.name, read | None if optional else read, *default))
    return msgspec.defstruct("_Line", columns, forbid_unknown_fields=True, gc=False)


_decode_line = msgspec.json.Decoder(_line_type()).decode
_step, _attempt, _skipped = attrgetter("global_step"), attrgetter("attempt"), attrgetter("skipped")
_getters = {name: attrgetter(name) for name in (*COLUMNS, *CARRIED)}


def open_journal(path: Path) -> ColumnSource | None:
    """The journal in a file; the journals of all attempts, where it is a state folder or its `attempts`."""
    if path.is_dir():
        folder = path / _ATTEMPTS if (path / _ATTEMPTS).is_dir() else path
        if not any(True for _ in _journals_in(folder)):
            return None
        return ColumnSource(path, "journal", lambda tally: _all(folder, tally))
    head = head_of_objects(path)
    if not any(_looks_ours(one) for one in head):
        return None
    return ColumnSource(path, "journal", lambda tally: _chunks(path, "", tally))


def _looks_ours(one: dict[str, Any]) -> bool:
    kind = one.get("kind")
    return isinstance(kind, str) and kind in _KINDS and "attempt" in one


def _journals_in(folder: Path) -> Iterator[Path]:
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except OSError as error:
        raise ConfigError(f"{folder} can't be read: {error.strerror or error}") from error
    yield from sorted(found, key=lambda path: int(path.name.split(".")[0]))


def _all(folder: Path, tally: Tally) -> Iterator[Readings]:
    for path in _journals_in(folder):
        yield from _chunks(path, f"{path.name}: ", tally)


def _chunks(path: Path, prefix: str, tally: Tally) -> Iterator[Readings]:
    number = 0
    with Bytes(path) as file:
        for lines in lines_of(file):
            samples: list[Any] = []
            for line in lines:
                number += 1
                try:
                    samples.append(_decode_line(line))  # type: ignore[arg-type]
                except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                    sample = _slowly(line, number, prefix, tally)
                    if sample is not None:
                        samples.append(sample)
            yield from _readings(samples, tally)
        if file.problem is not None:
            tally.cannot_read(number + 1, prefix + file.problem)


def _slowly(line: bytes | None, number: int, prefix: str, tally: Tally) -> Sample | None:
    """The sample that `decode` reads; None where the line is another record, which is kept, or unreadable."""
    try:
        if line is None:
            raise LineError("the line is too long")
        if not line.strip():
            return None
        record = decode(line.decode("utf-8", "replace"))
    except LineError as error:
        tally.cannot_read(number, f"{prefix}{error}")
        return None
    if isinstance(record, Sample):
        return record
    if record is not None:
        tally.keep(record)
    return None


def _readings(samples: list[Any], tally: Tally) -> Iterator[Readings]:
    """The lines' samples as columns."""
    if not samples:
        return
    cells = {name: cells_of_values(list(map(_getters[name], samples))) for name in tally.fields}
    rows = Rows(
        steps=np.array(list(map(_step, samples)), np.int64),
        attempts=np.array(list(map(_attempt, samples)), np.int64),
        values={name: found.values for name, found in cells.items()}
        | {"skipped": np.array(list(map(_skipped, samples)), np.bool_).astype(np.float64)},
        there={name: found.there for name, found in cells.items() if found.there is not None},
    )
    yield from readings_of(rows, tally.fields)
