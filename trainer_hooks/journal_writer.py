"""The metrics journal's writer: a bounded queue and a thread, so that no disk ever holds a step up."""

from __future__ import annotations

import logging
import os
import queue
import threading
from pathlib import Path

__all__ = ["JournalWriter", "create_attempt"]

log = logging.getLogger(__name__)

_QUEUE_LINES = 10_000
"""Lines that may wait for a slow disk; the next ones are dropped and counted."""

_CLOSE_S = 5.0
"""How long closing waits for what is queued: a hung filesystem may not hold the trainer."""


def create_attempt(state_dir: Path) -> tuple[int, int]:
    """Mints the next attempt's number by O_EXCL-creating its journal; returns (number, file descriptor).

    Two that race get different numbers, and a number is never used again.
    """
    folder = state_dir / "attempts"
    folder.mkdir(parents=True, exist_ok=True)
    taken = [int(p.stem) for p in folder.glob("*.jsonl") if p.stem.isdecimal()]
    number = max(taken, default=0) + 1
    while True:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            return number, os.open(folder / f"{number:04d}.jsonl", flags, 0o644)
        except FileExistsError:
            number += 1


class JournalWriter:
    """Appends whole lines; after kill -9 at most the last one is torn."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._queue: queue.Queue[str | None] = queue.Queue(_QUEUE_LINES)
        self.lost = 0
        """Lines that were dropped: the queue was full, or the disk refused them."""
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
        self.put_last()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self._lose("its disk hangs")
        else:
            os.close(self._descriptor)

    def put_last(self) -> None:
        """Tells the thread to end after what is queued."""
        try:
            self._queue.put(None, timeout=_CLOSE_S)
        except queue.Full:
            self._lose("its disk hangs")

    def _lose(self, why: str) -> None:
        if not self.lost:
            log.warning("sentinel loses lines of the metrics journal (%s); training goes on", why)
        self.lost += 1

    def _write(self) -> None:
        torn = b""
        while (line := self._queue.get()) is not None:
            whole = left = torn + line.encode() + b"\n"
            try:
                while left:  # a short write leaves the rest for the next call
                    left = left[os.write(self._descriptor, left) :]
                torn = b""
            except OSError as error:
                self._lose(str(error))
                torn = torn if left == whole else b"\n"  # what got there is a line of its own: it spoils no other
