"""CSV tables, by the names of their columns: commas, semicolons or tabs, with comments and gaps."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sentinel.bounded import LINE_BYTES
from sentinel.sources.column_names import SPLITS, Naming, no_loss, resolve
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.file_bytes import Bytes
from sentinel.sources.table_rows import BLANK, Cells, cells_of_arrow, split_losses
from sentinel.sources.table_source import Batch, table_source
from sentinel.vocabulary.errors import ConfigError

__all__ = ["open_csv"]

_HEAD_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 21
_DELIMITERS = ",;\t"
_SUFFIXES = re.compile(r"\.(csv|tsv)(\.gz)?$", re.IGNORECASE)
_ASCII = bytes(range(128)) + b"?" * 128
_TENSORBOARD_EXPORT = ["Wall time", "Step", "Value"]
_EXTRA = "extra"
"""A column of `key=value;key=value`, which is looked into."""
_KEY = re.compile(rb"(?:^|;)\s*([^=;]{1,80})=")
_EXTRA_ROWS_LOOKED_AT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    names: list[str]
    """The columns; of two with the same name the second is given one of its own."""

    delimiter: str
    quoted: bool
    """Whether cells may be quoted. Where none is, a stray quotation mark does not swallow the lines after it."""

    split: str
    """The column that names the split of a row, such as `train` and `val`; empty where there is none."""

    end: int
    """Bytes of the file that lie before the first row."""

    lines: int
    """Lines of the file that lie before the first row."""

    naming: Naming


def open_csv(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The table, where the file is one: its first line names a loss, or it is called .csv or .tsv.

    ConfigError when it is a table by its name and nothing in it is a loss.
    """
    header = _header(path, asked)
    if header is None:
        return None
    return table_source(path, "csv", lambda tally: _batches(path, header, tally), header.naming.notes_of_rows)


def _header(path: Path, asked: Mapping[str, str]) -> _Header | None:
    with Bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    first = _first_line(head)
    if first is None:
        return None
    start, end, lines = first
    text = head[start:end].decode("utf-8", "replace").rstrip("\r\n")
    called_so = _SUFFIXES.search(path.name) is not None
    delimiter = max(_DELIMITERS, key=text.count)
    try:
        (names,) = csv.reader([text], delimiter=delimiter)
    except (csv.Error, ValueError):
        return None
    if not called_so and len(names) < 2:
        return None
    try:
        naming = resolve(names, asked, str(path))
        if names == _TENSORBOARD_EXPORT and "loss" not in naming.columns:
            naming.columns["loss"] = names[-1]
            naming.notes.append("an export of TensorBoard does not say of which tag it is: taken for the loss")
    except ConfigError:
        if called_so or resolve(names, {}, str(path)).columns:
            raise
        return None
    if "loss" not in naming.columns:
        if called_so:
            raise no_loss(str(path), names)
        return None
    quoted = b'"' in head[start:]
    taken = {*naming.columns.values()}
    split = next((name for name in names if name.strip().lower() in SPLITS and name not in taken), "")
    return _Header(
        names=_each_once(names), delimiter=delimiter, quoted=quoted, split=split, end=end, lines=lines, naming=naming
    )


def _first_line(head: bytes) -> tuple[int, int, int] | None:
    """Where the first line that is neither blank nor a comment begins and ends, and its number."""
    start, number = 3 if head.startswith(b"\xef\xbb\xbf") else 0, 1
    while start < len(head):
        end = head.find(b"\n", start) + 1 or len(head)
        line = head[start:end].lstrip()
        if line and not line.startswith(b"#"):
            return start, end, number
        start, number = end, number + 1
    return None


def _each_once(names: list[str]) -> list[str]:
    taken: set[str] = set()
    each = []
    for number, name in enumerate(names):
        each.append(f"{name}\n{number}" if name in taken else name)  # no name has the end of a line in it
        taken.add(name)
    return each


def _batches(path: Path, header: _Header, tally: Tally) -> Iterator[Batch]:
    with Bytes(path) as file:
        file.read(header.end)
        if start := file.read(_BLOCK_BYTES):  # pyarrow has no table without a row
            file.push_back(start)
            table = _Table(file, header, tally)
            for batch in table.batches():
                yield table.cells(batch), len(batch), table.line_of
                table.rows_given += len(batch)
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


def _owned_by_arrow(block: bytes) -> Any:
    """The bytes where pyarrow's own threads may let go of them at any time: also while the interpreter shuts down, when
    a thread that has to ask Python for it aborts the process."""
    sink = pa.BufferOutputStream()
    sink.write(block)
    return pa.BufferReader(sink.getvalue())


class _Table:
    """The rows as pyarrow gives them: texts of the columns that have a field."""

    def __init__(self, file: Bytes, header: _Header, tally: Tally) -> None:
        self._file = file
        self._header = header
        self._tally = tally
        self._left_out = array("q")
        """Numbers of the rows that are no rows of the table, comments among them."""
        self._in_extra: dict[str, str] = {}
        self._before = 0
        """Rows of the blocks before, those that were left out among them."""
        self.rows_given = 0

    def batches(self) -> Iterator[Any]:
        """Record batches, to the end or to the first block that pyarrow cannot parse."""
        header = self._header
        wanted = set(header.naming.columns.values()) | ({_EXTRA, header.split} & set(header.names))
        for block in _blocks(self._file):
            self._before = self.rows_given + len(self._left_out)
            try:
                table = pyarrow.csv.read_csv(
                    _owned_by_arrow(block),
                    pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=header.names),
                    pyarrow.csv.ParseOptions(
                        delimiter=header.delimiter,
                        quote_char='"' if header.quoted else False,
                        ignore_empty_lines=False,
                        invalid_row_handler=self._no_row,
                    ),
                    pyarrow.csv.ConvertOptions(
                        check_utf8=False,
                        column_types=dict.fromkeys(wanted, pa.string()),
                        include_columns=sorted(wanted),
                        strings_can_be_null=True,
                        null_values=list(BLANK),
                    ),
                )
            except pa.ArrowException as error:
                line = self.line_of(0)
                self._tally.cannot_read(line, f"from about here on the rows can't be separated: {str(error)[:200]}")
                return
            yield from table.to_batches()

    def cells(self, batch: Any) -> dict[str, Cells]:
        """The fields of a batch."""
        columns = {}
        for ours, theirs in self._header.naming.columns.items():
            texts = batch.column(theirs)
            if self._header.delimiter == ";":  # written where a comma is the decimal point
                texts = pc.replace_substring(texts.cast(pa.binary()), b",", b".").cast(pa.string())
            columns[ours] = cells_of_arrow(texts)
        if self._header.split:
            split_losses(columns, batch.column(self._header.split).to_pylist())
        if _EXTRA in self._header.names:
            extra = batch.column(_EXTRA)
            self._look_for_keys(extra)
            for ours, key in self._in_extra.items():
                pattern = rf"(?:^|;)\s*{re.escape(key)}=(?P<value>[^;]*)"
                columns[ours] = cells_of_arrow(pc.extract_regex(extra, pattern).field("value"))
        return columns

    def line_of(self, row: int) -> int:
        """The line of a row of the batch that is being looked at."""
        number = self.rows_given + row + 1
        for left_out in self._left_out:
            if left_out > number:
                break
            number += 1
        return self._header.lines + number

    def _no_row(self, row: Any) -> str:
        number = self._before + row.number
        self._left_out.append(number)
        text = row.text.lstrip()
        if text and not text.startswith("#"):
            why = f"{row.actual_columns} cells where there should be {row.expected_columns}"
            self._tally.cannot_read(self._header.lines + number, why)
        return "skip"

    def _look_for_keys(self, extra: Any) -> None:
        some = extra.slice(0, _EXTRA_ROWS_LOOKED_AT).cast(pa.binary()).to_pylist()
        found = {key for text in some if text for key in _KEY.findall(text)}
        keys = sorted(key.decode() for key in found if key.isascii())
        named = resolve(keys, {}, _EXTRA).columns
        self._in_extra |= {
            ours: key
            for ours, key in named.items()
            if ours not in self._header.naming.columns and ours not in self._in_extra
        }
