"""Files written so that a crash leaves the old or the new, never half: write, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sentinel.vocabulary.errors import FilesystemRefused, FilesystemUnavailable, QuarantineError

_FOR_A_PERSON = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
    | {errno.EFBIG, errno.EINVAL, errno.EILSEQ}  # sentinel.bounded: too large, no regular file, no text
)  # none of these passes by itself
_CHUNK_BYTES = 1 << 30
_LEFT_BEHIND_NS = 3600 * 10**9  # no write takes that long, and one that does writes again


@contextmanager
def os_errors_named(where: Path | str) -> Iterator[None]:
    """Turns an OSError of the block into a SentinelError that names the file (`where` if the system names none)."""
    try:
        yield
    except OSError as error:
        named, why = error.filename or where, error.strerror or str(error)
        if error.errno in _FOR_A_PERSON:
            raise FilesystemRefused(f"{named} can't be read or changed: {why}") from error
        raise FilesystemUnavailable(f"{named} can't be read or written now: {why}") from error


def write_atomically(path: Path, content: str | bytes, *, alone: bool = False) -> None:
    """Replaces the file's content, whole or not at all, and returns when it is on the disk.

    Several processes may write one file: each writes a temporary file of its own beside it, and the last rename
    counts. A later write removes the temporary file of a killed writer once it is an hour old; at once where the caller
    is `alone`, by the run's lock.
    """
    with os_errors_named(path):
        try:
            now_ns = _replace(path, content)
        except FileNotFoundError:  # no such folder, or another writer took the temporary file for a leftover
            now_ns = _replace(path, content)
        _remove_leftovers(path, now_ns, alone=alone)
    sync_folder(path.parent)


def link_atomically(path: Path, text: str) -> None:
    """Replaces what is at the path by a symbolic link of that text, and returns when it is on the disk. The caller is
    alone by the run's lock: what a killed one has left beside it is removed."""
    with os_errors_named(path):
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        beside.symlink_to(text)
        beside.replace(path)
        _remove_leftovers(path, 0, alone=True)
    sync_folder(path.parent)


def _replace(path: Path, content: str | bytes) -> int:
    """Returns the time, ns, by the filesystem's clock."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with beside.open("xb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
            now_ns = os.fstat(file.fileno()).st_mtime_ns
        beside.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):  # the temporary name says nothing, and is another one each time
            error.filename, error.filename2 = str(path), None
        raise
    return now_ns


def _remove_leftovers(path: Path, now_ns: int, *, alone: bool = False) -> None:
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.new")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # another writer has renamed or removed it meanwhile
                    if alone or now_ns - entry.stat().st_mtime_ns > _LEFT_BEHIND_NS:
                        Path(entry.path).unlink()


def make_folders(folder: Path) -> None:
    """Creates the folder and its missing parents; returns when their names are on the disk."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Returns when the folder's entries (renames, new files) are on the disk."""
    with os_errors_named(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def rename(source: Path, destination: Path) -> None:
    """Moves within one filesystem; QuarantineError where the destination is on another one."""
    try:
        source.rename(destination)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise QuarantineError(f"{destination} is on another filesystem than {source}") from error
        raise


def move(source: Path, destination: Path, *, overwrite: bool = False) -> None:
    """The same into a folder that is made where there is none; returns when it is on the disk. QuarantineError also
    where the destination is there already."""
    if not overwrite and os.path.lexists(destination):
        raise QuarantineError(f"{destination} is there already: {source} would overwrite it")
    make_folders(destination.parent)
    rename(source, destination)
    sync_folder(destination.parent)
    sync_folder(source.parent)


def free_name(place: Path) -> Path:
    """The place, or the first of place.1, place.2 … that is not taken."""
    names = (place.with_name(f"{place.name}.{n}") if n else place for n in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def copy_file(source: Path, destination: Path) -> None:
    """A copy with the file's times, whole on the disk; without new blocks where the filesystem shares them (XFS, Btrfs,
    NFS 4.2). FileExistsError."""
    with source.open("rb") as read, destination.open("xb") as written:
        left = os.fstat(read.fileno()).st_size
        try:
            while left and (done := os.copy_file_range(read.fileno(), written.fileno(), min(left, _CHUNK_BYTES))):
                left -= done
        except OSError:  # across filesystems on an older kernel, or one that has no such call
            read.seek(0)
            written.seek(0)
            shutil.copyfileobj(read, written)
        written.flush()
        os.fsync(written.fileno())
    shutil.copystat(source, destination)


def link_or_copy(source: Path, destination: Path) -> None:
    """A second name of the file; a copy, whole or not at all, where there are no hard links, or between filesystems.
    FileExistsError. A copy that is cut short leaves `part_of(destination)`, which the next one replaces."""
    try:
        destination.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError:
        part = part_of(destination)
        part.unlink(missing_ok=True)
        copy_file(source, part)
        part.rename(destination)


def part_of(destination: Path) -> Path:
    """Where a copy is until it is whole."""
    return destination.with_name(f".{destination.name}.sentinel-copying")
