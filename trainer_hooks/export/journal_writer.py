"""The metrics journal's writer: a bounded queue and a thread, so that no disk ever holds a step up."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)

_QUEUE_LINES = 10_000  # lines that may wait for a slow disk; the next ones are dropped and counted
_CLOSE_S = 5.0  # how long closing waits for what is queued: a hung filesystem may not hold the trainer


_LOOKS_S = 10.0  # how often the writer looks whether the journal is still at its path
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL


def journal_path(state_dir: Path, attempt: int) -> Path:
    """Where the metrics journal of an attempt is."""
    return state_dir / "attempts" / f"{attempt:04d}.jsonl"


def create_attempt(state_dir: Path) -> tuple[int, int]:
    """(number, file descriptor) of the next attempt, minted by O_EXCL-creating its journal: never used twice."""
    folder = state_dir / "attempts"
    folder.mkdir(parents=True, exist_ok=True)
    taken = [int(p.stem) for p in folder.glob("*.jsonl") if p.stem.isdecimal()]
    number = max(taken, default=0) + 1
    while True:
        try:
            return number, os.open(journal_path(state_dir, number), _NEW, 0o644)
        except FileExistsError:
            number += 1


class JournalWriter:
    """Appends whole lines; after kill -9 at most the last one is torn. A journal that was removed or moved away is
    begun again at its path, which the daemon reads, with its first line: what the attempt runs with. Another file at
    the path is left alone, and the lines are lost."""

    def __init__(self, descriptor: int, path: Path | None = None, *, looks_s: float = _LOOKS_S) -> None:
        self._descriptor = descriptor
        self._path = path  # where the descriptor was opened; None: it is not looked after
        self._looks_s = looks_s
        self._looked_at = time.monotonic()
        self._first = b""
        self._torn = b""
        self._queue: queue.Queue[str | None] = queue.Queue(_QUEUE_LINES)
        self.lost = 0
        """Lines that were dropped: the queue was full, the disk refused them, or their file is no longer there."""
        self._thread = threading.Thread(target=self._write, name="sentinel-journal", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Queues a line, given without its newline; never waits."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._lose("its disk is too slow")

    def close(self) -> None:
        """Writes what is queued, within a deadline."""
        try:
            self._queue.put(None, timeout=_CLOSE_S)  # ends the thread after what is queued
        except queue.Full:
            self._lose("its disk hangs")
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self._lose("its disk hangs")
        else:
            os.close(self._descriptor)

    def _lose(self, why: str) -> None:
        if not self.lost:
            log.warning("sentinel loses lines of the metrics journal (%s); training goes on", why)
        self.lost += 1

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            encoded = line.encode() + b"\n"
            try:
                self._look()
                self._first = self._first or encoded
                self._append(encoded)
            except OSError as error:
                self._lose(str(error))
                with contextlib.suppress(OSError):
                    os.utime(self._descriptor)  # a sign of life that a full disk has room for

    def _append(self, line: bytes) -> None:
        whole = left = self._torn + line
        try:
            while left:  # a short write leaves the rest for the next call
                left = left[os.write(self._descriptor, left) :]
            self._torn = b""
        except OSError:
            if left != whole:
                self._torn = b"\n"  # ends the part that got there: it spoils no other line
            raise

    def _look(self) -> None:
        """Begins the journal again where it is no longer at its path. Raises OSError where that can't be done."""
        now = time.monotonic()
        if self._path is None or now - self._looked_at < self._looks_s:
            return
        ours = os.fstat(self._descriptor)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            again = os.open(self._path, _NEW, 0o644)
            os.close(self._descriptor)
            self._descriptor, self._torn = again, b""
            log.warning("sentinel: %s was taken away; it is begun again, and training goes on", self._path)
            self._append(self._first)
        else:
            if not os.path.samestat(ours, there):
                raise FileExistsError(f"{self._path} is another file now")
        self._looked_at = now
