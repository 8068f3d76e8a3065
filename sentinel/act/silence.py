"""How long the watch itself has heard nothing of a run: by a clock that nobody sets."""

from __future__ import annotations

import time
from collections.abc import Callable

from sentinel.judge.history import History

__all__ = ["Silence"]


class Silence:
    """Samples carry their trainer's clock, files their server's, and a look this machine's: where one of them is set
    an hour ahead, a job that is well looks as if it hung. What came from it while it was watched does not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: tuple[int, int] | None = None
        self._since_s = clock()

    def lasts_s(self, history: History) -> float:
        """Seconds since a look found a new attempt or sample; since the first look where none has."""
        latest = history.latest
        heard = (0, 0) if latest is None else (latest.number, latest.made)
        if heard != self._heard:
            self._heard, self._since_s = heard, self._clock()
        return self._clock() - self._since_s
