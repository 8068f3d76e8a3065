"""Samples as a table for other programs: CSV, Parquet or JSON lines, in our names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sentinel.judge.readings import Readings
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import LARGEST_WHOLE, to_json
from sentinel.vocabulary.sample import Sample

SUFFIXES = (".csv", ".parquet", ".jsonl")
_KEYS = ("attempt", "global_step")
_WHOLE = tuple(f.name for f in fields(Sample) if str(f.type).startswith("int"))


class Columns:
    """Which fields of Sample anything was measured of, and whether those that count are whole; found before writing."""

    def __init__(self) -> None:
        self._measured: set[str] = set()
        self._broken: set[str] = set()

    def note(self, readings: Readings) -> None:
        for name in readings.columns:
            if there := _there(readings, name).any():
                self._measured.add(name)
            values = readings.columns[name][_there(readings, name)] if there and name in _WHOLE else np.zeros(0)
            if not ((values == np.floor(values)) & (np.abs(values) < LARGEST_WHOLE)).all():
                self._broken.add(name)
        if readings.skipped is not None:
            self._measured.add("skipped")

    @property
    def schema(self) -> pa.Schema:
        """Attempt and step, then what was measured, in the order of Sample."""
        types = {name: pa.int64() for name in _WHOLE if name not in self._broken} | {"skipped": pa.bool_()}
        named = [f.name for f in fields(Sample) if f.name in self._measured]
        return pa.schema([(name, types.get(name, pa.float64())) for name in (*_KEYS, *named)])


def write_table(path: Path, schema: pa.Schema, stretches: Iterable[Readings]) -> int:
    """Writes them as the name ends; returns how many samples. The file is there once all of it is. nan is nan; what was
    not measured is null, in CSV a blank."""
    written = 0
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file, _writer(path.suffix, file, schema) as write:
        for readings in stretches:
            write(_batch(readings, schema))
            written += len(readings)
    part.replace(path)
    return written


@contextmanager
def _writer(suffix: str, file: BinaryIO, schema: pa.Schema) -> Iterator[Callable[[Any], object]]:
    if suffix == ".jsonl":
        yield lambda batch: file.write("".join(json.dumps(to_json(row)) + "\n" for row in batch.to_pylist()).encode())
    elif suffix == ".csv":
        with pa.csv.CSVWriter(file, schema) as table:
            yield table.write_batch
    elif suffix == ".parquet":
        with pq.ParquetWriter(file, schema) as table:
            yield table.write_batch
    else:
        raise ConfigError(f"a table is a {', '.join(SUFFIXES)} file, not {suffix or 'one without a suffix'}")


def _batch(readings: Readings, schema: pa.Schema) -> Any:
    arrays = []
    for field in schema:
        if field.name in _KEYS:
            values = readings.steps if field.name == "global_step" else np.full(len(readings), readings.attempt)
            arrays.append(pa.array(values, field.type))
        elif field.name == "skipped":
            arrays.append(pa.array(~readings.updated))
        else:
            there = _there(readings, field.name)
            values = np.where(there, readings.columns.get(field.name, 0.0), 0.0)
            arrays.append(pa.array(values.astype(field.type.to_pandas_dtype()), field.type, mask=~there))
    return pa.record_batch(arrays, schema=schema)


def _there(readings: Readings, name: str) -> NDArray[np.bool_]:
    there = readings.has(name)
    if name == "time_unix_s" and name in readings.columns:  # nan is "no clock" there
        return there & ~np.isnan(readings.columns[name])
    return there
