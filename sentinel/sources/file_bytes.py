"""From a file's bytes to its lines: plain or compressed with gzip, whatever the bytes are and however they are cut up.

Damage ends the reading and is reported by `Bytes.problem`; it raises nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import cast

from sentinel.bounded import LINE_BYTES, unpacked
from sentinel.vocabulary.errors import ConfigError

_READ_BYTES = 1 << 21


class Bytes(ExitStack):
    """A file, read to its end or to the first damage. ConfigError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.problem: str | None = None  # why the file could not be read to its end
        try:
            self._file = cast("BufferedReader", self.enter_context(unpacked(path)))
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error

    def read(self, size: int, after: bytes = b"") -> bytes:
        """As many bytes, with `after` before them; fewer only at the end and after damage."""
        gathered = BytesIO()  # hands its bytes out without a copy
        gathered.write(after)
        while self.problem is None and size:
            try:
                data = self._file.read1(min(size, _READ_BYTES))  # read would lose what lies before the damage
            except (OSError, EOFError, zlib.error) as error:
                self.problem = f"the file can't be read on: {getattr(error, 'strerror', None) or error}"
                break
            if not data:
                break
            gathered.write(data)
            size -= len(data)
        return gathered.getvalue()


def lines_of(file: Bytes) -> Iterator[list[bytes | None]]:
    """The lines without their ends, a few thousand at a time. None for a line that is longer than LINE_BYTES."""
    rest, too_long = b"", False
    while data := file.read(_READ_BYTES):
        whole = (rest + data).split(b"\n")
        rest = whole.pop()
        lines: list[bytes | None] = [*whole]
        if too_long and lines:
            lines[0], too_long = None, False
        yield lines
        if len(rest) > LINE_BYTES:
            rest, too_long = b"", True
    if too_long:
        yield [None]
    elif rest:
        yield [rest]


_LONGEST_LINE = 1 << 20  # bytes of a log line that are kept; the rest of it is dropped
# Byte order marks of Windows' editors and shells; the zeros of UTF-16 are dropped later.
_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")


class LineSplitter:
    """Gives whole lines with their numbers. A line ends with a newline or a carriage return (progress bars)."""

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False
        self._number = 1
        self.cut = 0  # lines that were longer than a mebibyte, and cut

    def feed(self, data: bytes) -> list[tuple[int, str]]:
        """The lines that end in these bytes."""
        if self._number == 1:
            data = next((data[len(mark) :] for mark in _MARKS if data.startswith(mark)), data)
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[end:]
        lines = self._lines(data[:end]) if end else []
        if len(self._rest) > _LONGEST_LINE:
            if not self._dropping:
                lines.append((self._number, self._decoded(self._rest[:_LONGEST_LINE])))
                self.cut += 1
            self._rest, self._dropping = b"", True
        return lines

    def end(self) -> list[tuple[int, str]]:
        """The last line, which has no newline."""
        rest, self._rest = self._rest, b""
        return self._lines(rest + b"\r") if rest else []

    def forget(self) -> None:
        """Drops the unfinished line: the file was cut."""
        self._rest, self._dropping = b"", False

    def _lines(self, block: bytes) -> list[tuple[int, str]]:
        text = self._decoded(block)
        lines: list[tuple[int, str]] = []
        pieces = text.split("\n")
        for index, piece in enumerate(pieces):
            number = self._number + index
            for part in piece.split("\r") if "\r" in piece else (piece,):
                if self._dropping:  # the end of a line that was cut
                    self._dropping = False
                    continue
                if part:
                    if len(part) > _LONGEST_LINE:
                        part = part[:_LONGEST_LINE]  # noqa: PLW2901 - cut, and otherwise itself
                        self.cut += 1
                    lines.append((number, part))
        self._number += len(pieces) - 1
        return lines

    @staticmethod
    def _decoded(block: bytes) -> str:
        text = block.decode("utf-8", "replace")
        return text.replace("\0", "") if "\0" in text else text  # a hole that a truncated file was left with
