"""How long nothing has come of a run: by its filesystem's clock, and by a clock of this machine that nobody sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from sentinel.judge.history import History

__all__ = ["FileSilence", "Silence"]


class Silence:
    """Samples carry their trainer's clock, files their server's, and a look this machine's: where one of them is set
    an hour ahead, a job that is well looks as if it hung. What came from it while it was watched does not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: tuple[int, int] | None = None
        self._since_s = clock()
        self.is_known = False
        """Whether anything came while it was watched: else all of the silence may have been before."""

    def lasts_s(self, history: History) -> float:
        """Seconds since a look found a new attempt or sample; since the first look where none has."""
        latest = history.latest
        heard = (0, 0) if latest is None else (latest.number, latest.made)
        if heard != self._heard:
            self.is_known = self._heard is not None
            self._heard, self._since_s = heard, self._clock()
        return self._clock() - self._since_s


class FileSilence:
    """Seconds since files of one kind were written last.

    The filesystem's clock tells it of what was written before the first look, the monotonic clock from then on: this
    machine's wall clock takes no part.
    """

    def __init__(self, now_there_unix_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """`now_there_unix_s` is by the clock of the files' own filesystem."""
        self._now_there_unix_s = now_there_unix_s
        self._clock = clock
        self._mark: tuple[Path, int, int] | None = None
        self._was_s = 0.0
        self._at_s = 0.0

    def lasts_s(self, files: Iterable[Path]) -> float | None:
        """Of the newest of the files; None where there is none."""
        newest = max(((at, path, size) for path in files for at, size in _written(path)), default=None)
        if newest is None:
            return None
        (at_ns, path, size), now_s = newest, self._clock()
        if (path, at_ns, size) != self._mark:
            age_s = max(0.0, self._now_there_unix_s() - at_ns / 1e9)
            self._was_s = age_s if self._mark is None else min(age_s, now_s - self._at_s)
            self._mark, self._at_s = (path, at_ns, size), now_s
        return self._was_s + now_s - self._at_s


def _written(path: Path) -> Iterable[tuple[int, int]]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return ((found.st_mtime_ns, found.st_size),)
