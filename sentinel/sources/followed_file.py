"""One file that somebody else appends to, rotates, cuts short or replaces; also over NFS."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from sentinel.sources.line_splitter import LineSplitter

__all__ = ["FollowedFile"]

_CHUNK_BYTES = 1 << 18
_MARK_BYTES = 256
"""The beginning of the file, by which a file that was cut and has grown past where we were is known."""

Lines = list[tuple[int, str]]


class FollowedFile:
    """Gives the lines that were completed since the last poll, of whatever file is at the path.

    A file that was renamed is read to its end through its open descriptor, then the one that took its name. One that
    became shorter, or begins differently, is read from its beginning. A file that is gone is nothing for now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._offset = 0
        self._mark = b""
        self._was_shorter = False
        self.splitter = LineSplitter()

    def poll(self) -> Iterator[Lines]:
        """The lines that are complete now, a chunk at a time. OSError when what is there can't be read."""
        try:
            yield from self._polled()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._close()  # the server has replaced the file, or forgotten our handle: the next poll asks by name

    def _polled(self) -> Iterator[Lines]:
        if self._fd is not None and not self._is_at_path(self._fd):
            yield from self._appended(self._fd)
            yield self.splitter.end()
            self._close()
            self._offset, self._mark = 0, b""
        if self._fd is None:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                return
        yield from self._appended(self._fd)

    def _is_at_path(self, fd: int) -> bool:
        """Whether the open file is still the one of that name; so it counts while there is none."""
        ours = os.fstat(fd)
        try:
            there = os.stat(self.path)  # noqa: PTH116 - beside fstat
        except FileNotFoundError:
            return True
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def _appended(self, fd: int) -> Iterator[Lines]:
        mark = os.pread(fd, _MARK_BYTES, 0)
        begun_anew = not mark.startswith(self._mark)
        shorter = os.fstat(fd).st_size < self._offset
        if shorter and not begun_anew and not self._was_shorter:
            self._was_shorter = True  # NFS may show an older size for a while: it is believed at the next poll
            return
        self._was_shorter = False
        if begun_anew or shorter:
            self._offset = 0
            self.splitter.forget()
        self._mark = mark
        while chunk := os.pread(fd, _CHUNK_BYTES, self._offset):
            self._offset += len(chunk)
            yield self.splitter.feed(chunk)

    def _close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = None

    def __del__(self) -> None:
        self._close()
