"""CSV and Parquet tables, by the names of their columns, read by pyarrow.

CSV: commas, semicolons or tabs, with comments and gaps. Parquet: unpacked by a process of its own (`parquet_child`),
since a page may become anything.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sentinel.bounded import LINE_BYTES
from sentinel.sources import parquet_child
from sentinel.sources.column_names import SPLITS, Naming, no_loss, resolve, resolve_until_loss
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.file_bytes import Bytes
from sentinel.sources.table_rows import BLANK, Cells, cells_of_arrow, split_losses
from sentinel.sources.table_source import Batch, table_source
from sentinel.vocabulary.errors import ConfigError

_HEAD_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 21
_SUFFIXES = re.compile(r"\.(csv|tsv)(\.gz)?$", re.IGNORECASE)
_ASCII = bytes(range(128)) + b"?" * 128
_TENSORBOARD_EXPORT = ["Wall time", "Step", "Value"]
_NO_STEP = "there is no column with the step: rows are numbered from 1"

_EXTRA = "extra"  # a column of `key=value;key=value`, which is looked into
_KEY = re.compile(rb"(?:^|;)\s*([^=;]{1,80})=")
_EXTRA_ROWS_LOOKED_AT = 200

_MAGIC = b"PAR1"
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    names: list[str]  # the columns; of two with the same name the second is given one of its own
    delimiter: str
    # Whether cells may be quoted. Where none is, a stray quotation mark does not swallow the lines after it.
    quoted: bool
    split: str  # the column that names the split of a row, such as `train` and `val`; empty where there is none
    end: int  # bytes of the file that lie before the first row; `lines` are their lines
    lines: int
    naming: Naming


def open_csv(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The table, where the file is one: its first line names a loss, or it is called .csv or .tsv. ConfigError when it
    is a table by its name and nothing in it is a loss."""
    header = _header(path, asked)
    if header is None:
        return None
    naming = header.naming
    return table_source(path, "csv", lambda t: _csv_batches(path, header, t), naming.columns, _notes(naming))


def _notes(naming: Naming) -> list[str]:
    return naming.notes if "step" in naming.columns else [_NO_STEP, *naming.notes]


def _header(path: Path, asked: Mapping[str, str]) -> _Header | None:
    with Bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    start, lines = 3 if head.startswith(b"\xef\xbb\xbf") else 0, 1
    while True:  # to the first line that is neither blank nor a comment
        if start >= len(head):
            return None
        end = head.find(b"\n", start) + 1 or len(head)
        line = head[start:end].lstrip()
        if line and not line.startswith(b"#"):
            break
        start, lines = end, lines + 1
    text = head[start:end].decode("utf-8", "replace").rstrip("\r\n")
    called_so = _SUFFIXES.search(path.name) is not None
    delimiter = max(",;\t", key=text.count)
    try:
        (names,) = csv.reader([text], delimiter=delimiter)
    except (csv.Error, ValueError):
        return None
    if not called_so and len(names) < 2:
        return None
    try:
        naming = resolve(names, asked, str(path))
    except ConfigError:
        if called_so or resolve(names, {}, str(path)).columns:
            raise
        return None
    if names == _TENSORBOARD_EXPORT and "loss" not in naming.columns:
        naming.columns["loss"] = names[-1]
        naming.notes.append("an export of TensorBoard does not say of which tag it is: taken for the loss")
    if "loss" not in naming.columns:
        if called_so:
            raise no_loss(str(path), names)
        return None
    taken = {*naming.columns.values()}
    first = {name: at for at, name in reversed([*enumerate(names)])}
    return _Header(
        # no name has the end of a line in it
        names=[name if first[name] == at else f"{name}\n{at}" for at, name in enumerate(names)],
        delimiter=delimiter,
        quoted=b'"' in head[start:],
        split=next((name for name in names if name.strip().lower() in SPLITS and name not in taken), ""),
        end=end,
        lines=lines,
        naming=naming,
    )


def _csv_batches(path: Path, header: _Header, tally: Tally) -> Iterator[Batch]:
    """The rows, to the end of the file or to the first block that pyarrow cannot parse."""
    left_out = array("q")  # numbers of the rows that are no rows of the table, comments among them
    in_extra: dict[str, str] = {}
    given = before = 0

    def line_of(row: int) -> int:
        number = given + row + 1
        for each in left_out:
            if each > number:
                break
            number += 1
        return header.lines + number

    def no_row(row: Any) -> str:
        left_out.append(before + row.number)
        text = row.text.lstrip()
        if text and not text.startswith("#"):
            why = f"{row.actual_columns} cells where there should be {row.expected_columns}"
            tally.cannot_read(header.lines + before + row.number, why)
        return "skip"

    with Bytes(path) as file:
        file.read(header.end)
        for block in _blocks(file):
            before = given + len(left_out)
            try:
                batches = _parsed(block, header, no_row)
            except pa.ArrowException as error:
                tally.cannot_read(line_of(0), f"from about here on the rows can't be separated: {str(error)[:200]}")
                break
            for batch in batches:
                yield _cells(batch, header, in_extra), len(batch), line_of
                given += len(batch)
        if file.problem is not None:
            tally.cannot_read(header.lines + 1, file.problem)


def _blocks(file: Bytes) -> Iterator[bytes]:
    """The rest of the file in blocks of whole lines, with `?` for each byte outside ASCII: no number has one, and
    pyarrow cannot report a row whose bytes are not UTF-8."""
    rest: list[bytes] = []
    while data := file.read(_BLOCK_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*rest, data[:end]]).translate(_ASCII)
            rest = []
        rest.append(data[end:])
        if sum(map(len, rest)) > LINE_BYTES:  # not a table; pyarrow's error is reported
            break
    if last := b"".join(rest):
        yield last.translate(_ASCII)


def _parsed(block: bytes, header: _Header, no_row: Any) -> Any:
    wanted = {*header.naming.columns.values()} | ({_EXTRA, header.split} & {*header.names})
    # In a buffer of pyarrow's own: a thread of its own that had to ask Python to let go of the bytes would abort a
    # process that is shutting down.
    sink = pa.BufferOutputStream()
    sink.write(block)
    return pyarrow.csv.read_csv(
        pa.BufferReader(sink.getvalue()),
        pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=header.names),
        pyarrow.csv.ParseOptions(
            delimiter=header.delimiter,
            quote_char='"' if header.quoted else False,
            ignore_empty_lines=False,
            invalid_row_handler=no_row,
        ),
        pyarrow.csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(wanted, pa.string()),
            include_columns=sorted(wanted),
            strings_can_be_null=True,
            null_values=list(BLANK),
        ),
    ).to_batches()


def _cells(batch: Any, header: _Header, in_extra: dict[str, str]) -> dict[str, Cells]:
    """The fields of a batch; adds to `in_extra` the fields, and their keys, that are first met in the extra column."""
    columns = {}
    for ours, theirs in header.naming.columns.items():
        texts = batch.column(theirs)
        if header.delimiter == ";":  # written where a comma is the decimal point
            texts = pc.replace_substring(texts.cast(pa.binary()), b",", b".").cast(pa.string())
        columns[ours] = cells_of_arrow(texts)
    if header.split:
        split_losses(columns, batch.column(header.split).to_pylist())
    if _EXTRA in header.names:
        extra = batch.column(_EXTRA)
        some = extra.slice(0, _EXTRA_ROWS_LOOKED_AT).cast(pa.binary()).to_pylist()
        found = {key for text in some if text for key in _KEY.findall(text)}
        for ours, key in resolve(sorted(key.decode() for key in found if key.isascii()), {}, _EXTRA).columns.items():
            if ours not in header.naming.columns:
                in_extra.setdefault(ours, key)
        for ours, key in in_extra.items():
            pattern = rf"(?:^|;)\s*{re.escape(key)}=(?P<value>[^;]*)"
            columns[ours] = cells_of_arrow(pc.extract_regex(extra, pattern).field("value"))
    return columns


class UnreadableError(Exception):
    """Why the Parquet file can't be read on, as a phrase."""


def open_parquet(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The table, where the file is one by its first bytes. ConfigError when its list of columns is damaged, or when no
    column is a loss."""
    with Bytes(path) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
    try:
        names = [name for batch in _unpacked(path) for name in batch.column("name").to_pylist()]
    except UnreadableError as error:
        raise ConfigError(f"{path} is a Parquet file that can't be read: {error}") from error
    naming = resolve_until_loss([names], asked, str(path))
    return table_source(path, "parquet", lambda t: _parquet_batches(path, naming, t), naming.columns, _notes(naming))


def _unpacked(path: Path, columns: Sequence[str] = ()) -> Generator[Any]:
    """What `parquet_child.batches` gives, from a process of its own that ends with this iterator."""
    command = [sys.executable, "-P", parquet_child.__file__, str(path), *columns]
    alone = os.environ | {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}  # threads reserve address space
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=alone) as child,
    ):
        problem = ""
        try:
            yield from pa.ipc.open_stream(child.stdout)
        except pa.ArrowException as error:  # the stream was cut off
            problem = str(error)
        except GeneratorExit:
            child.kill()
            raise
        code = child.wait()
        if code < 0:
            raise UnreadableError(f"it takes more time or memory than a table of its size may (signal {-code})")
        if code or problem:
            errors.seek(0)
            raise UnreadableError(" ".join(errors.read(_SHOWN).decode("utf-8", "replace").split()) or problem)


def _parquet_batches(path: Path, naming: Naming, tally: Tally) -> Iterator[Batch]:
    given = 0
    try:
        with closing(_unpacked(path, sorted(set(naming.columns.values())))) as batches:
            for batch in batches:
                columns = {ours: cells_of_arrow(batch.column(theirs)) for ours, theirs in naming.columns.items()}
                yield columns, len(batch), range(given + 1, given + 1 + len(batch)).__getitem__
                given += len(batch)
    except UnreadableError as error:
        tally.cannot_read(given + 1, f"from this row on the file can't be read: {error}")
