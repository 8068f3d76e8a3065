"""Any file or folder that a run left behind, as series of samples in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sentinel.adapters.sources.read_log import LogRead, read_log
from sentinel.adapters.sources.source import ColumnSource, FileSource, Tally
from sentinel.adapters.sources.tables import open_columns
from sentinel.judge.readings import Readings
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Sample

__all__ = ["open_sources"]

_CHUNK_SAMPLES = 1 << 12
"""Samples of a log that are in memory at a time."""


def open_sources(path: Path, columns: Mapping[str, str]) -> list[ColumnSource]:
    """The series in a file or folder: in columns, or else a log of lines. Never empty.

    ConfigError when nothing in it is known, or it can't be read. `columns`: see `open_columns`.
    """
    in_columns = open_columns(path, columns)
    if in_columns:
        return in_columns
    if path.is_dir():
        raise ConfigError(f"{path}: no journal, trainer state or TensorBoard series with a loss is in this folder")
    log = read_log(path)
    return [FileSource(path, log.format, lambda tally: _readings(log, tally))]


def _readings(log: LogRead, tally: Tally) -> Iterator[Readings]:
    held: list[Sample] = []
    for record in log:
        if not isinstance(record, Sample):
            tally.keep(record)
            continue
        if held and (record.attempt != held[0].attempt or len(held) == _CHUNK_SAMPLES):
            yield Readings.of(held)
            held = []
        held.append(record)
    if held:
        yield Readings.of(held)
    tally.unreadable += log.unreadable
    tally.first_unreadable += [(line.number, f"{line.why}: {line.text}") for line in log.first_unreadable]
    if log.note:
        tally.note(log.note)
    if log.cut_lines:
        tally.note(f"{log.cut_lines} lines were longer than a mebibyte, and were cut")
