"""Threads that take work: as many as there is work at once, and a few that stay for the next."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

__all__ = ["Workers"]

log = logging.getLogger(__name__)

_STAY = 8
"""Threads that wait for work; one more that has none ends."""

Work = Callable[[], None]


class Workers:
    """Work never waits here: where all threads are busy, or hang, another one is started. None outlives the process."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Work, Work]] = SimpleQueue()
        self._idle = 0
        self._lock = Lock()

    def do(self, work: Work, then: Work) -> None:
        """Has the work done, and then `then`, by a thread that is free again at that moment."""
        with self._lock:
            another = self._idle <= 0
            self._idle -= not another
        self._work.put((work, then))
        if another:
            try:
                Thread(target=self._run, name="sentinel-turns", daemon=True).start()
            except RuntimeError as error:  # there can be no more threads just now: it is done by the next that is free
                log.error("no thread can be started: %s", error)
                with self._lock:
                    self._idle -= 1

    def _run(self) -> None:
        stays = True
        while stays:
            work, then = self._work.get()
            stays = False
            try:
                work()
                with self._lock:
                    stays = self._idle < _STAY
                    self._idle += stays
            finally:  # what work raises ends this thread, and is shown by it
                then()
