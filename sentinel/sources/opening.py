"""Opens any file or folder that a run left behind as series of samples in columns, or as a log of lines.

The format is found by the content, and by the name only where the content leaves it open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sentinel.judge.readings import Readings
from sentinel.sources.alike_lines import AlikeSamples
from sentinel.sources.arrow_tables import open_csv, open_parquet
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.journals import open_journal
from sentinel.sources.json_table import open_json_lines, open_trainer_state
from sentinel.sources.line_reader import NO_COLUMNS
from sentinel.sources.log_file import LogFile, read_log
from sentinel.sources.tensorboard_scalars import open_tensorboard
from sentinel.sources.wandb_runs import open_wandb
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record, Sample

_CHUNK_SAMPLES = 1 << 12  # samples of a log that are in memory at a time


def open_sources(path: Path, columns: Mapping[str, str]) -> list[ColumnSource]:
    """The series in a file or folder: in columns, or else a log of lines. Never empty. ConfigError when no format of it
    is known, or it cannot be read. `columns`: see `open_columns`."""
    tables = open_columns(path, columns)
    if tables:
        return tables
    if path.is_dir():
        raise ConfigError(f"{path}: no journal, trainer state or TensorBoard series with a loss is in this folder")
    return [open_log(path, columns=columns)]


def one_source(path: Path, columns: Mapping[str, str]) -> ColumnSource:
    """The only series of the path. ConfigError where it has several."""
    sources = open_sources(path, columns)
    if len(sources) == 1:
        return sources[0]
    some = ", ".join(str(source.path) for source in sources[:5])
    raise ConfigError(f"{path} holds {len(sources)} series, and one is wanted; name one of them: {some}")


def open_columns(path: Path, columns: Mapping[str, str]) -> list[ColumnSource]:
    """The series that a file or folder holds in columns; empty where it holds none, such as a log of lines.

    `columns` maps fields to names of the source, where they are not found by themselves: loss to train/loss.
    One source for a state folder or a journal, a trainer state or the folder of its checkpoints, a W&B run, a table;
    for a TensorBoard folder one for each folder in it that has a loss. ConfigError when the path cannot be read, when a
    column of `columns` is not there, or when no column is known to be a loss.
    """
    if path.is_dir():
        one = open_journal(path) or open_trainer_state(path, columns) or open_wandb(path, columns)
    else:
        one = open_table(path, columns)
    return [one] if one is not None else open_tensorboard(path, columns)


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


def open_log(path: Path, format_name: str | None = None, columns: Mapping[str, str] = NO_COLUMNS) -> ColumnSource:
    """The log of lines. ConfigError where it cannot be opened, no format of it is recognised, or two readings of it
    are possible."""
    log = read_log(path, format_name, columns)
    return ColumnSource(path, log.format, lambda tally: _log_chunks(log, tally))


def in_columns(records: Iterable[Record | AlikeSamples], tally: Tally) -> Iterator[Readings]:
    """The samples among the records, a chunk at a time; the tally keeps the other records."""
    parts: list[Readings] = []
    waiting = 0
    for part in _parts(records, tally):
        if parts and (part.attempt != parts[0].attempt or waiting >= _CHUNK_SAMPLES):
            yield _joined(parts)
            parts, waiting = [], 0
        parts.append(part)
        waiting += len(part)
    if parts:
        yield _joined(parts)


def _parts(records: Iterable[Record | AlikeSamples], tally: Tally) -> Iterator[Readings]:
    """The same, in chunks of any size."""
    samples: list[Sample] = []
    for record in records:
        if not isinstance(record, Sample | AlikeSamples):
            tally.keep(record)
            continue
        alike = isinstance(record, AlikeSamples)
        if samples and (alike or record.attempt != samples[0].attempt or len(samples) == _CHUNK_SAMPLES):
            yield Readings.of(samples, tally.fields)
            samples = []
        if isinstance(record, AlikeSamples):
            yield _readings_of(record, tally.fields)
        else:
            samples.append(record)
    if samples:
        yield Readings.of(samples, tally.fields)


def _joined(parts: Sequence[Readings]) -> Readings:
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part.columns)
    measured = {name: np.concatenate([part.has(name) for part in parts]) for name in names}
    return Readings(
        attempt=parts[0].attempt,
        steps=np.concatenate([part.steps for part in parts]),
        columns={name: np.concatenate([part.values(name) for part in parts]) for name in names},
        measured={name: there for name, there in measured.items() if not there.all()},
        skipped=np.concatenate([~part.updated for part in parts]),
    )


def _readings_of(alike: AlikeSamples, names: Sequence[str]) -> Readings:
    columns = {name: column for name in names if (column := alike.lines.column(name))[0] is not None}
    return Readings(
        attempt=alike.attempt,
        steps=np.array(alike.steps, np.int64),
        columns={name: np.array(column, np.float64) for name, column in columns.items()},
    )


def _log_chunks(log: LogFile, tally: Tally) -> Iterator[Readings]:
    log.explains = tally.explains
    yield from in_columns(log.in_stretches(), tally)
    tally.names = {} if log.reader.taken is None else log.reader.taken.names
    tally.counts = log.reader.counts
    tally.unreadable += log.reader.unreadable
    tally.first_unreadable += log.reader.tally.first_unreadable
    if log.reader.note:
        tally.note(log.reader.note)
    if log.splitter.cut:
        tally.note(f"{log.splitter.cut} lines were longer than a mebibyte, and were cut")
