"""What a W&B server may cost, whatever it answers: so many lines, a line in so many seconds, so much memory.

Each request has a deadline of the library's own, for all of its answer; the library has no bound on an answer's bytes,
nor on how many answers a run takes, which is the server's word.
"""

from __future__ import annotations

import queue
import resource
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_MOST_ROWS = 20_000_000  # a line for each step of the longest runs, ten times
_SERVICE_BYTES = 2 << 30  # of memory for the library's service, which holds whole answers
_SERVICE = "wandb-core"


class Endless(Exception):  # noqa: N818 - reads as what it says
    """The server gives more than a run can have."""


def in_time(rows: Iterable[T], within_s: float, most: int = _MOST_ROWS) -> Iterator[T]:
    """The rows, read by a thread. TimeoutError where the next one takes longer, Endless after so many, and what
    reading them raises."""
    read: queue.Queue[tuple[T] | Exception | None] = queue.Queue(maxsize=1 << 12)
    over = threading.Event()

    def put(one: tuple[T] | Exception | None) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                read.put(one, timeout=0.5)
                return

    def run() -> None:
        try:
            for row in rows:
                put((row,))
                if over.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - the edge of a thread: it is raised in the caller's
            put(error)
        else:
            put(None)

    threading.Thread(target=run, name="sentinel-wandb-rows", daemon=True).start()
    try:
        for _ in range(most + 1):
            try:
                found = read.get(timeout=within_s)
            except queue.Empty:
                raise TimeoutError(f"timed out: no line within {within_s:g} s") from None
            if found is None:
                return
            if isinstance(found, Exception):
                raise found
            yield found[0]
        raise Endless(f"more than {most} lines")
    finally:
        over.set()


def bound_service() -> None:
    """Bounds the memory of the library's service, a process that it has begun: one that wants more ends."""
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError, ValueError):
            for pid in map(int, children.read_text().split()):
                if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0].endswith(_SERVICE.encode()):
                    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
                    least = _SERVICE_BYTES if hard == resource.RLIM_INFINITY else min(_SERVICE_BYTES, hard)
                    resource.prlimit(pid, resource.RLIMIT_DATA, (least, hard))
