"""A pool of threads without a limit: work never waits for a free thread; a few idle threads are kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

log = logging.getLogger(__name__)

_STAY = 8
"""Idle threads that are kept; a further one ends."""

Work = Callable[[], None]


class Workers:
    """Starts another thread where all are busy or hang. The threads are daemons: none outlives the process."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Work, Work]] = SimpleQueue()
        self._idle = 0
        self._lock = Lock()

    def do(self, work: Work, then: Work) -> None:
        """Runs the work, and then `then`, in a thread that counts as free by then."""
        with self._lock:
            another = self._idle <= 0
            self._idle -= not another
        self._work.put((work, then))
        if another:
            try:
                Thread(target=self._run, name="sentinel-turns", daemon=True).start()
            except RuntimeError as error:  # no more threads now: the next free one runs it
                log.error("can't start a thread: %s", error)
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
            finally:  # an exception of the work ends this thread, which prints it
                then()
