"""Runs that are configured and not watched here: their locks are looked at until one is free and there is room."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from threading import Lock

from sentinel.adapters.lock import RunLock
from sentinel.config import Config
from sentinel.config.run_files import state_dir_of
from sentinel.daemon.watched_run import run_prefixed

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 10.0
_LOOKS_PER_S = 100  # of one daemon, at all its candidates: each is three calls of the filesystem
_JITTER = 0.5  # share of the pace by which it is longer or shorter: daemons that began together do not look together


class Room:
    """How many more runs this daemon may watch."""

    def __init__(self, most: int | None) -> None:
        self.most = most  # None: as many as there are
        self._taken = 0
        self._lock = Lock()

    def take(self) -> bool:
        with self._lock:
            if self.most is not None and self._taken >= self.most:
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self._taken -= 1


class Candidate:
    """A member of the fleet until its run's lock is free and there is room; `free` is called then, once, in the turn's
    thread, and the room is taken. Who asks for the lock afterwards may still find that another was quicker."""

    def __init__(
        self, config: Config, room: Room, free: Callable[[Candidate], None], others: Callable[[], int] = lambda: 1
    ) -> None:
        self.config = config
        self.holder: str | None = None  # the process that watches the run, as of the last look
        self._room = room
        self._free = free
        self._others = others

    @property
    def pace_s(self) -> float:
        """Seconds until the next look: longer where there are more candidates than can be looked at in that time."""
        pace_s = max(_LOOK_AGAIN_S, self._others() / _LOOKS_PER_S)
        return pace_s * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret

    def turn(self, late_s: float) -> bool:  # noqa: ARG002 - of a member of the fleet
        if not self._room.take():
            return True  # a daemon that is full looks at no lock
        try:
            holder = RunLock(state_dir_of(self.config)).held_by()
        except OSError as error:
            log.debug("%s: the lock can't be read: %s", self.config.run.name, error)
            holder = None  # who takes the run says what is wrong with its folder, and tries again
        if holder is None:
            self._free(self)
            return False
        self._room.give_back()
        if holder != self.holder:
            self.holder = holder
            with run_prefixed(self.config.run.name):
                # where several daemons share a folder, most runs are another's
                level = logging.INFO if self._room.most is None else logging.DEBUG
                log.log(level, "another sentinel watches this run: %s; trying again", holder)
        return True

    def leave(self, within_s: float) -> None:
        """Nothing is held."""
