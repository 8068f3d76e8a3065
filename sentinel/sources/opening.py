"""Any file or folder that a run left behind, as series of samples in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sentinel.judge.readings import Readings
from sentinel.sources.read_log import LogRead, read_log
from sentinel.sources.source import ColumnSource, FileSource, Tally
from sentinel.sources.tables import open_columns
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record, Sample

__all__ = ["in_columns", "one_source", "open_log", "open_sources"]

_CHUNK_SAMPLES = 1 << 12
"""Samples of a log that are in memory at a time."""


def open_sources(path: Path, columns: Mapping[str, str]) -> list[ColumnSource]:
    """The series in a file or folder: in columns, or else a log of lines. Never empty.

    ConfigError when nothing in it is known, or it can't be read. `columns`: see `open_columns`.
    """
    tables = open_columns(path, columns)
    if tables:
        return tables
    if path.is_dir():
        raise ConfigError(f"{path}: no journal, trainer state or TensorBoard series with a loss is in this folder")
    return [open_log(path)]


def open_log(path: Path, format_name: str | None = None) -> ColumnSource:
    """The log of lines. ConfigError where it can't be opened, or nothing in it is recognised."""
    log = read_log(path, format_name)
    return FileSource(path, log.format, lambda tally: _readings(log, tally))


def one_source(path: Path, columns: Mapping[str, str]) -> ColumnSource:
    """The only series that is there. ConfigError where there are several."""
    sources = open_sources(path, columns)
    if len(sources) == 1:
        return sources[0]
    some = ", ".join(str(source.path) for source in sources[:5])
    raise ConfigError(f"{path} holds {len(sources)} series, and one is wanted; name one of them: {some}")


def in_columns(records: Iterable[Record], tally: Tally) -> Iterator[Readings]:
    """The samples among the records, a chunk at a time; the others are kept."""
    held: list[Sample] = []
    for record in records:
        if not isinstance(record, Sample):
            tally.keep(record)
            continue
        if held and (record.attempt != held[0].attempt or len(held) == _CHUNK_SAMPLES):
            yield Readings.of(held, tally.fields)
            held = []
        held.append(record)
    if held:
        yield Readings.of(held, tally.fields)


def _readings(log: LogRead, tally: Tally) -> Iterator[Readings]:
    yield from in_columns(log, tally)
    tally.unreadable += log.unreadable
    tally.first_unreadable += [(line.number, f"{line.why}: {line.text}") for line in log.first_unreadable]
    if log.note:
        tally.note(log.note)
    if log.cut_lines:
        tally.note(f"{log.cut_lines} lines were longer than a mebibyte, and were cut")
