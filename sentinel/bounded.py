"""Bounded reading of files that may be anything: a pipe, an endless device, a gigabyte in a kilobyte's place, a bomb.

Documents are read up to a size, lines up to a length, compressed data up to a ratio; else UnfitFileError, an OSError.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from sentinel.vocabulary.errors import LineError, SentinelError
from sentinel.vocabulary.numbers import load_object

DOCUMENT_BYTES = 64 << 20  # a document that is read whole: a configuration, a job script, a record of ours
SECRET_BYTES = 64 << 10  # a file that holds a token or a password
LINE_BYTES = 4 << 20  # a line that is kept: a row, an object, a record of a journal or of the incident log
_UNPACKED_RATIO = 200  # bytes per compressed byte, beyond the free ones; logs and tables reach 5 to 50
_UNPACKED_FREELY = 64 << 20
_BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"

T = TypeVar("T")
U = TypeVar("U")


class UnfitFileError(OSError):
    """A file that may be read but is not what is expected: too large, no regular file, no text."""


def open_regular(path: Path) -> BinaryIO:
    """The file, open for reading; waits for no pipe. OSError, also where it is a pipe, a device or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        is_folder = stat.S_ISDIR(mode)
        why = (errno.EISDIR, "it is a folder") if is_folder else (errno.EINVAL, "it is no regular file")
        raise UnfitFileError(*why, str(path))
    return os.fdopen(descriptor, "rb")


def append_to(path: Path) -> BinaryIO:
    """The file, made where there is none, to be appended to; waits for no reader of a pipe. OSError, also where it is a
    pipe or a folder; /dev/null and other devices are for whoever names them."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(descriptor)
        raise UnfitFileError(errno.EINVAL, "it is no regular file", str(path))
    os.set_blocking(descriptor, True)  # for whom it is handed to
    return os.fdopen(descriptor, "ab")


def read_document(path: Path, limit: int = DOCUMENT_BYTES) -> bytes:
    """All of the file. OSError where it has more bytes than that, or is no regular file."""
    with open_regular(path) as file:
        data = bytearray()
        while block := file.read(min(_BLOCK_BYTES, limit + 1 - len(data))):
            data += block
            if len(data) > limit:
                raise UnfitFileError(errno.EFBIG, f"it has more than {_shown(limit)}", str(path))
        return bytes(data)


def read_text(path: Path, limit: int = DOCUMENT_BYTES, *, errors: str = "strict") -> str:
    """The same as text, in UTF-8. OSError also where it is none."""
    data = read_document(path, limit)
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UnfitFileError(errno.EILSEQ, f"byte {error.start} is not UTF-8", str(path)) from error


def read_secret(path: Path) -> str:
    """The token or the password that the file holds: one line of characters that can be seen, without the blanks around
    it. OSError, whose text does not quote it."""
    found = read_text(path, SECRET_BYTES).strip()
    if (why := why_no_secret(found)) is not None:
        raise UnfitFileError(errno.EINVAL, f"it {why}", str(path))
    return found


def why_no_secret(found: str) -> str | None:
    """Why a header can't carry the text, or a person can't have meant it, as the end of a sentence; it does not quote
    it."""
    return None if found and found.isprintable() else "should hold one line, of characters that can be seen"


@contextmanager
def private_copy(path: Path) -> Iterator[Path]:
    """A copy of the file in memory, for a library that opens what it is given by its path: the copy is a regular file
    of bounded size, and nobody changes it meanwhile. OSError as of opening the file."""
    data = read_document(path)
    with os.fdopen(os.memfd_create(path.name, os.MFD_CLOEXEC), "wb") as copy:
        copy.write(data)
        copy.flush()
        yield Path(f"/proc/self/fd/{copy.fileno()}")


def read_record(path: Path, made: Callable[[dict[str, Any]], T], refusal: type[SentinelError] = LineError) -> T:
    """What `made` makes of the file's JSON object; else the refusal, which names the file. OSError as of opening it."""
    try:
        return made(load_object(read_text(path)))
    except (LineError, UnfitFileError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or error
        raise refusal(f"{path} can't be read: {why}") from error


def record_or(
    missing: U, path: Path, made: Callable[[dict[str, Any]], T], refusal: type[SentinelError] = LineError
) -> T | U:
    """The same; `missing` where there is no such file."""
    try:
        return read_record(path, made, refusal)
    except FileNotFoundError:
        return missing


@contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked where it is a gzip file. OSError as of `open_regular`.

    Reading raises OSError (EFBIG) where a few bytes become very many, EOFError or zlib.error where it is damaged.
    """
    with open_regular(path) as file:
        is_packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if is_packed:
            with gzip.open(file) as inner:
                yield cast("BinaryIO", _Unpacked(path, file, inner))
        else:
            yield file


class _Unpacked(BufferedIOBase):
    """A gzip file that gives no more than a multiple of what was read of it."""

    def __init__(self, path: Path, packed: BinaryIO, inner: gzip.GzipFile) -> None:
        super().__init__()
        self._path, self._packed, self._inner, self._given = path, packed, inner, 0

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes:
        data = self._inner.read1(_BLOCK_BYTES if size < 0 else min(size, _BLOCK_BYTES))
        self._given += len(data)
        if self._given > _UNPACKED_FREELY + _UNPACKED_RATIO * self._packed.tell():
            why = f"it unpacks to more than {_UNPACKED_RATIO} times its size"
            raise UnfitFileError(errno.EFBIG, why, str(self._path))
        return data

    def read(self, size: int | None = -1) -> bytes:
        """Up to as many bytes, and fewer than a block's only at the end or where a gzip member ends."""
        return self.read1(-1 if size is None else size)


def _shown(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} bytes"
