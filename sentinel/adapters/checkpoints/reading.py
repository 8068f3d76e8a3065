"""Reads a checkpoint's files whole: each byte once, for SHA-256, CRC-32 and nan together, several files at a time.

Large plain reads and no mmap: a file that is cut off while it is mapped, or a disk that fails, would kill the process.
Hashing, CRCs and numpy's maxima release the interpreter's lock, so threads are enough to keep every core at work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.checkpoints.archive import (
    Member,
    UnsoundError,
    dcp_members,
    safetensors_members,
    torch_members,
)
from sentinel.adapters.checkpoints.members import Members
from sentinel.adapters.checkpoints.shown import shown
from sentinel.adapters.checkpoints.walk import Item

__all__ = ["TORCH_FILE", "FileRead", "Pieces", "Progress", "open_plain", "read_files"]

Progress = Callable[[int, int], None]
"""(bytes done, bytes total); called from the reading threads, one at a time."""

Pieces = Mapping[str, Sequence[tuple[int, int]]]
"""File's name -> (offset, bytes) of what torch.distributed.checkpoint wrote into it, by offset."""

TORCH_FILE = re.compile(
    r".*\.(?:pt|pth)|(?:.*/)?(?:pytorch_model|adapter_model|optimizer|scheduler|training_args)[^/]*\.bin", re.DOTALL
)
"""Paths of what torch.save writes."""

_CHUNK_BYTES = 1 << 20
"""What the second level of a core's cache still holds: the checks find in it what the read has put there."""

_AHEAD_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead:
    """What reading one file whole has shown."""

    name: str
    sha256: str | None
    """None where it was not asked for, or the file was not read to its end."""

    problem: str | None


class _Stopped(Exception):  # noqa: N818 - a signal within this module, no error
    """Another file was found unsound: the rest need not be read."""


def read_files(
    folder: Path,
    items: Sequence[Item],
    *,
    crcs: bool,
    digests: bool,
    pieces: Pieces,
    progress: Progress | None = None,
    threads: int | None = None,
) -> tuple[FileRead, ...]:
    """Reads all the files, in their order, and stops early when one is unsound (those not read are left out)."""
    cores = len(os.sched_getaffinity(0))
    workers = threads or max(4, 2 * cores)
    counter = _Counter(sum(item.size_bytes for item in items), progress)
    # With a file for every core, each thread digests what it has just read, while its own cache still holds it.
    beside = ThreadPoolExecutor(workers) if digests and len(items) < cores else None
    reader = _Reader(folder, crcs, digests, pieces, counter, beside)
    # The largest first: a rank's shards are of one size, and what is left at the end are the small ones.
    by_size = sorted(items, key=lambda item: -item.size_bytes)
    with beside or contextlib.nullcontext(), ThreadPoolExecutor(workers) as pool:
        results = [result for result in pool.map(reader, by_size) if result is not None]
    return tuple(sorted(results, key=lambda result: result.name))


class _Counter:
    """Adds up what the threads have read, and tells."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._done += count
                self._progress(self._done, self._total)


class _Reader:
    """Reads one file after the other; called from several threads."""

    def __init__(
        self,
        folder: Path,
        crcs: bool,
        digests: bool,
        pieces: Pieces,
        counter: _Counter,
        beside: ThreadPoolExecutor | None,
    ) -> None:
        self._folder, self._crcs, self._digests, self._pieces, self._counter = folder, crcs, digests, pieces, counter
        self._stop = threading.Event()
        self._beside = beside
        """Digests one chunk while the thread that read it checks it and reads the next; None is one after the other."""

    def __call__(self, item: Item) -> FileRead | None:
        try:
            return FileRead(name=item.name, sha256=self._read(item), problem=None)
        except _Stopped:
            return None
        except UnsoundError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it can't be read: {error.strerror}"
        self._stop.set()
        return FileRead(name=item.name, sha256=None, problem=f"{shown(item.name)}: {problem}")

    def _read(self, item: Item) -> str | None:
        if self._stop.is_set():
            raise _Stopped
        descriptor = open_plain(self._folder / item.name, item)
        try:
            members = Members(descriptor, item.size_bytes, self._members(descriptor, item), crcs=self._crcs)
            digest = hashlib.sha256() if self._digests else None
            pending: Future[None] | None = None
            for position, view in self._chunks(descriptor, item.size_bytes):
                if pending is not None:
                    pending.result()
                if digest is not None and self._beside is not None:
                    pending = self._beside.submit(digest.update, view)
                elif digest is not None:
                    digest.update(view)
                members.feed(position, view)
            if pending is not None:
                pending.result()
            _unchanged(descriptor, item)
            return digest.hexdigest() if digest is not None else None
        finally:
            os.close(descriptor)

    def _chunks(self, descriptor: int, size: int) -> Iterator[tuple[int, memoryview]]:
        """(position, bytes), through two buffers in turn: one is digested while the other one is filled."""
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_SEQUENTIAL)
        os.posix_fadvise(descriptor, 0, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        length = max(1, min(size, _CHUNK_BYTES))
        buffers = (memoryview(bytearray(length)), memoryview(bytearray(length if size > length else 0)))
        position = turn = 0
        while position < size:
            if self._stop.is_set():
                raise _Stopped
            os.posix_fadvise(descriptor, position + _AHEAD_BYTES, length, os.POSIX_FADV_WILLNEED)
            count = os.preadv(descriptor, [buffers[turn]], position)
            if count == 0:
                raise UnsoundError(f"it ends after {position} of {size} bytes")
            yield position, buffers[turn][:count]
            self._counter.add(count)
            position += count
            turn = 1 - turn

    def _members(self, descriptor: int, item: Item) -> Iterator[Member]:
        if TORCH_FILE.fullmatch(item.name):
            return torch_members(descriptor, 0, item.size_bytes, digested=not self._crcs)
        if item.name.endswith(".safetensors"):
            return safetensors_members(descriptor, item.size_bytes)
        return dcp_members(descriptor, self._pieces.get(item.name, ()))


def open_plain(path: Path, item: Item | None = None) -> int:
    """A descriptor of a regular file; never follows a link, never waits for a pipe. OSError, UnsoundError.

    With an item: of that very file, and not of one that was put into its place since the folder was walked.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (item is not None and (status.st_dev, status.st_ino) != _identity(item)):
        os.close(descriptor)
        raise UnsoundError("it is not the file that it was when the folder was looked at")
    return descriptor


def _unchanged(descriptor: int, item: Item) -> None:
    status = os.fstat(descriptor)
    if (status.st_size, status.st_mtime_ns) != (item.size_bytes, item.mtime_ns):
        raise UnsoundError("it changed while it was read: something still writes to it")


def _identity(item: Item) -> tuple[int, int]:
    return item.device, item.inode
