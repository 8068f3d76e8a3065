"""Files written so that a crash leaves the old or the new, never half: write, fsync, rename, fsync of the folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sentinel.vocabulary.errors import FilesystemRefused, FilesystemUnavailable

__all__ = ["os_errors_named", "sync_folder", "write_atomically"]

_FOR_A_PERSON = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
    | {errno.EFBIG, errno.EINVAL, errno.EILSEQ}  # sentinel.bounded: too large, no regular file, no text
)
"""What does not pass by itself."""


@contextmanager
def os_errors_named(where: Path | str) -> Iterator[None]:
    """What the operating system says no to in the block becomes an error of ours that names the file and the reason.

    `where` stands for the file where the system itself names none (a write, an fsync).
    """
    try:
        yield
    except OSError as error:
        named, why = error.filename or where, error.strerror or str(error)
        if error.errno in _FOR_A_PERSON:
            raise FilesystemRefused(f"{named} can't be read or changed: {why}") from error
        raise FilesystemUnavailable(f"{named} can't be read or written now: {why}") from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces the file's content, whole or not at all, and returns when it is on the disk.

    What a crash leaves beside it is overwritten by the next write: writers of one file follow one another.
    """
    beside = path.with_name(f".{path.name}.new")
    with os_errors_named(path):
        with beside.open("wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Returns when the folder's entries (renames, new files) are on the disk."""
    with os_errors_named(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
