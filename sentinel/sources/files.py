"""Files of bytes, plain or compressed with gzip, whose damage ends the reading and is told, and raises nothing."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Self, cast

from sentinel.bounded import LINE_BYTES, unpacked
from sentinel.vocabulary.errors import ConfigError

__all__ = ["Bytes", "lines_of"]

_READ_BYTES = 1 << 21


class Bytes:
    """A file to be read from the beginning to its end, or to where it can't be read on. ConfigError when not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem: str | None = None
        """Why the file could not be read to its end."""
        self._pushed_back = b""
        self._open = ExitStack()
        try:
            self._file = cast("BufferedReader", self._open.enter_context(unpacked(path)))
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error

    def close(self) -> None:
        """Gives the file back."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int = -1) -> bytes:
        """Up to as many bytes; none at the end, and where the file can't be read on."""
        if self._pushed_back:
            size = len(self._pushed_back) if size < 0 else size
            data, self._pushed_back = self._pushed_back[:size], self._pushed_back[size:]
            return data
        parts, wanted = [], size
        while self.problem is None and wanted != 0:
            try:
                data = self._file.read1(wanted)  # read would lose what lies before the damage
            except (OSError, EOFError, zlib.error) as error:
                self.problem = f"the file can't be read on: {getattr(error, 'strerror', None) or error}"
                break
            if not data:
                break
            parts.append(data)
            wanted -= len(data) if size > 0 else 0
        return b"".join(parts)

    def read_up_to(self, size: int) -> bytes:
        """As many bytes, fewer only where the file ends."""
        gathered = BytesIO()  # hands out its bytes without a copy of them
        while size > 0 and (data := self.read(min(size, _READ_BYTES))):
            gathered.write(data)
            size -= len(data)
        return gathered.getvalue()

    def push_back(self, data: bytes) -> None:
        """What was read will be read once more."""
        self._pushed_back = data + self._pushed_back


def lines_of(file: Bytes) -> Iterator[list[bytes | None]]:
    """The lines, a few thousand at a time, without their ends. None for one that is too long to be kept."""
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
