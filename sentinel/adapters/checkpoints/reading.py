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
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.adapters.checkpoints.archive import (
    MemberChecks,
    UnsoundError,
    ZipMember,
    dcp_members,
    safetensors_members,
    torch_members,
)
from sentinel.adapters.checkpoints.pace import Pace, ReadingStoppedError, allowed_cores
from sentinel.adapters.checkpoints.walk import Item
from sentinel.vocabulary.manifest import Digested
from sentinel.vocabulary.names import shown

Progress = Callable[[int, int], None]  # (bytes done, bytes total); called from the reading threads, one at a time
Pieces = Mapping[str, Sequence[tuple[int, int]]]  # file's name -> (offset, bytes) of what DCP wrote into it, by offset

# Paths of what torch.save writes.
TORCH_FILE = re.compile(
    r".*\.(?:pt|pth|ckpt)|(?:.*/)?(?:pytorch_model|adapter_model|optimizer|scheduler|training_args)[^/]*\.bin",
    re.DOTALL,
)
_CHUNK_BYTES = 1 << 20  # fits a core's second-level cache: the checks find in it what the read has put there
_AHEAD_BYTES = 32 << 20
_AHEAD_IN_BACKGROUND_BYTES = 2 << 20


def read_files(
    folder: Path,
    items: Sequence[Item],
    *,
    crcs: bool,
    digests: bool,
    pieces: Pieces,
    progress: Progress | None = None,
    pace: Pace | None = None,
) -> tuple[tuple[Digested, ...], str | None]:
    """Reads all the files; the digests by name, none where none are requested, and what is wrong with the first file
    that is unsound, as a sentence: then reading stops early.

    With a pace: one file at a time, in the calling thread alone; ReadingStoppedError.
    """
    cores = allowed_cores()
    workers = max(4, 2 * cores)
    # With a file for every core, each thread digests what it has just read, while its own cache still holds it.
    beside = ThreadPoolExecutor(workers) if digests and len(items) < cores and pace is None else None
    total = sum(item.size_bytes for item in items)
    reader = _Reader(
        folder=folder,
        crcs=crcs,
        digests=digests,
        pieces=pieces,
        progress=progress,
        total=total,
        beside=beside,
        pace=pace,
    )
    # The largest first: a rank's shards are of one size, and what is left at the end are the small ones.
    by_size = sorted(items, key=lambda item: -item.size_bytes)
    with beside or contextlib.nullcontext(), ThreadPoolExecutor(workers) as pool:
        done = map(reader, by_size) if pace is not None else pool.map(reader, by_size)
        read = [digested for digested in done if digested is not None]
    return tuple(sorted(read, key=lambda one: one.name)), next((why for _, why in sorted(reader.problems)), None)


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Reads one file after the other; called from several threads."""

    folder: Path
    crcs: bool
    digests: bool
    pieces: Pieces
    progress: Progress | None
    total: int
    beside: ThreadPoolExecutor | None  # digests one chunk while its thread checks it and reads the next
    pace: Pace | None
    done: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)  # of files, by name
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, item: Item) -> Digested | None:
        try:
            sha256 = self._read(item)
            return None if sha256 is None else Digested(name=item.name, size_bytes=item.size_bytes, sha256=sha256)
        except ReadingStoppedError:
            self.stop.set()
            raise
        except CancelledError:  # another file was found unsound: the rest need not be read
            return None
        except UnsoundError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it can't be read: {error.strerror}"
        self.stop.set()
        self.problems.append((item.name, f"{shown(item.name)}: {problem}"))
        return None

    def _read(self, item: Item) -> str | None:
        if self.stop.is_set():
            raise CancelledError
        descriptor = open_plain(self.folder / item.name, item)
        try:
            checks = MemberChecks(descriptor, item.size_bytes, self._members(descriptor, item), crcs=self.crcs)
            digest = hashlib.sha256() if self.digests else None
            pending: Future[None] | None = None
            for position, view in self._chunks(descriptor, item.size_bytes):
                if pending is not None:
                    pending.result()
                if digest is not None and self.beside is not None:
                    pending = self.beside.submit(digest.update, view)
                elif digest is not None:
                    digest.update(view)
                checks.feed(position, view)
            if pending is not None:
                pending.result()
            status = os.fstat(descriptor)
            if (status.st_size, status.st_mtime_ns) != (item.size_bytes, item.mtime_ns):
                raise UnsoundError("it changed while it was read: something still writes to it")
            return digest.hexdigest() if digest is not None else None
        finally:
            os.close(descriptor)

    def _chunks(self, descriptor: int, size: int) -> Iterator[tuple[int, memoryview]]:
        """(position, bytes), through two buffers in turn: one is digested while the other one is filled."""
        ahead = _AHEAD_BYTES if self.pace is None else _AHEAD_IN_BACKGROUND_BYTES
        if size > _CHUNK_BYTES:
            os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_SEQUENTIAL)
            os.posix_fadvise(descriptor, 0, ahead, os.POSIX_FADV_WILLNEED)
        length = max(1, min(size, _CHUNK_BYTES))
        buffers = (memoryview(bytearray(length)), memoryview(bytearray(length if size > length else 0)))
        position = turn = 0
        while position < size:
            if self.stop.is_set():
                raise CancelledError
            if position + ahead < size:
                os.posix_fadvise(descriptor, position + ahead, length, os.POSIX_FADV_WILLNEED)
            count = os.preadv(descriptor, [buffers[turn]], position)
            if count == 0:
                raise UnsoundError(f"it ends after {position} of {size} bytes")
            yield position, buffers[turn][:count]
            if self.pace is not None:
                self.pace.wait(count)
            if self.progress is not None:
                with self.lock:
                    self.done += count
                    self.progress(self.done, self.total)
            position += count
            turn = 1 - turn

    def _members(self, descriptor: int, item: Item) -> Iterator[ZipMember]:
        if TORCH_FILE.fullmatch(item.name):
            return torch_members(descriptor, 0, item.size_bytes, digested=not self.crcs)
        if item.name.endswith(".safetensors"):
            return safetensors_members(descriptor, item.size_bytes)
        return dcp_members(descriptor, self.pieces.get(item.name, ()))


def open_plain(path: Path, item: Item | None = None) -> int:
    """A descriptor of a regular file; never follows a link, never waits for a pipe. OSError, UnsoundError.

    With an item: of that very file, not of one that replaced it since the folder was walked.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (item is not None and (status.st_dev, status.st_ino) != item.identity):
        os.close(descriptor)
        name = "it" if item else shown(path.name)
        raise UnsoundError(f"{name} is not the file that it was when the folder was looked at")
    return descriptor
