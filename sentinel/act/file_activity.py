"""When the files of a run were written last, and for how long nothing has come of it: by clocks that nobody sets."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sentinel.act.saved_files import modified_unix_s
from sentinel.judge.history import History
from sentinel.plan.observation import FileSeen

_CLOCK_KNOWN_S = 600.0  # seconds for which a filesystem's clock is taken to go on as the monotonic one
_TICK_S = 2.0  # by which two clocks may differ
Clock = Callable[[], float]


class FileTimes:
    """Looks at modification times, and remembers what it has seen change: that no clock can falsify."""

    def __init__(
        self, state_dir: Path, checkpoints: Path, *, now: Clock = time.time, clock: Clock = time.monotonic
    ) -> None:
        self._state_dir = state_dir
        self._checkpoints = checkpoints
        self._now = now
        self._clock = clock
        self._made: dict[int, tuple[float | None, float]] = {}  # device -> its clock, and the monotonic one then
        self._seen: dict[Path, tuple[tuple[int, int], float, float | None]] = {}  # mark, seen first at, changed at

    def look(
        self, attempts: Iterable[int], logs: Iterable[Path], saved: Path | None, *, sure_s: float
    ) -> tuple[FileSeen, ...]:
        """The newest file of each kind; `saved`: that of the checkpoints. An age above `sure_s` is checked against the
        filesystem's own clock."""
        log = max(matching(logs), key=modified_unix_s, default=None)
        of_log = None if log is None else self._sign(log, sure_s)
        of_save = None if saved is None else self._sign(saved, sure_s, checkpoint=True)
        return (
            *self.of_journals(attempts, sure_s=sure_s),
            *(file_seen for file_seen in (of_log, of_save) if file_seen is not None),
        )

    def of_journals(self, attempts: Iterable[int], *, sure_s: float) -> tuple[FileSeen, ...]:
        journals = self._state_dir / "attempts"
        found = (self._sign(journals / f"{n:04d}.jsonl", sure_s, attempt=n) for n in attempts)
        return tuple(file_seen for file_seen in found if file_seen is not None)

    def now_there_unix_s(self) -> float:
        """Now, by the clock of the state folder's filesystem; by this machine's where nothing can be made there."""
        found = _stat(self._state_dir)
        return self._now() if found is None else self._there_unix_s(found.st_dev)

    def _sign(
        self, path: Path, sure_s: float, *, attempt: int | None = None, checkpoint: bool = False
    ) -> FileSeen | None:
        if (found := _stat(path)) is None:
            return None
        return FileSeen(what=str(path), age_s=self.age_s(path, found, sure_s), attempt=attempt, checkpoint=checkpoint)

    def age_s(self, path: Path, found: os.stat_result, sure_s: float) -> float:
        """Seconds since the file was written last; one of `sure_s` or more is checked against the filesystem's own
        clock. A time that lies in the future says nothing: then it is how long this watch has seen it unchanged."""
        age_s = self._now() - found.st_mtime
        if age_s >= sure_s:  # it decides: a clock that is an hour ahead must not
            age_s = min(age_s, self._there_unix_s(found.st_dev) - found.st_mtime)
        elif age_s < 0:
            age_s = self._there_unix_s(found.st_dev) - found.st_mtime
        mark, now_s = (found.st_mtime_ns, found.st_size), self._clock()
        before = self._seen.get(path)
        first_s = now_s if before is None or before[0] != mark else before[1]
        changed_s = None if before is None else before[2] if before[0] == mark else now_s
        self._seen[path] = (mark, first_s, changed_s)
        if age_s < -_TICK_S:
            age_s = now_s - first_s
        return age_s if changed_s is None else min(age_s, now_s - changed_s)

    def _there_unix_s(self, device: int) -> float:
        """Now, by the clock of that filesystem; by this machine's where no file can be made there. The monotonic clock
        tells it on from when a file was made: this machine's wall clock may be set meanwhile."""
        made_unix_s, at_s = self._made.get(device, (None, -math.inf))
        if self._clock() - at_s >= _CLOCK_KNOWN_S:
            made_unix_s, at_s = None, self._clock()
            for place in (self._state_dir, self._checkpoints):
                with contextlib.suppress(OSError):
                    if place.stat().st_dev == device:
                        made_unix_s = _made_now_unix_s(place)
                        break
            self._made[device] = (made_unix_s, at_s)
        return self._now() if made_unix_s is None else made_unix_s + self._clock() - at_s


def matching(patterns: Iterable[Path]) -> Iterator[Path]:
    """Paths, and what they match where they are patterns."""
    for pattern in patterns:
        yield pattern
        with contextlib.suppress(OSError, ValueError):
            if "*" in pattern.name:
                yield from pattern.parent.glob(pattern.name)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _made_now_unix_s(folder: Path) -> float:
    path = folder / f".sentinel-clock.{os.getpid()}"
    try:
        path.write_bytes(b"\n")
        return path.stat().st_mtime
    finally:
        path.unlink(missing_ok=True)


class Silence:
    """Samples carry their trainer's clock, files their server's, and a look this machine's: where one of them is set an
    hour ahead, a job that is well looks as if it hung. What came from it while it was watched does not."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._heard: tuple[int, int] | None = None
        self._since_s = clock()
        self.is_known = False  # whether anything came while it was watched: else all of it may have been before

    def lasts_s(self, history: History) -> float:
        """Seconds since a look found a new attempt or sample; since the first look where none has."""
        latest = history.latest
        heard = (0, 0) if latest is None else (latest.number, latest.made)
        if heard != self._heard:
            self.is_known = self._heard is not None
            self._heard, self._since_s = heard, self._clock()
        return self._clock() - self._since_s


class FileSilence:
    """Seconds since files of one kind were written last. The filesystem's clock tells it of what was written before the
    first look, the monotonic clock from then on: this machine's wall clock takes no part."""

    def __init__(self, now_there_unix_s: Clock, clock: Clock = time.monotonic) -> None:
        self._now_there_unix_s = now_there_unix_s  # by the clock of the files' own filesystem
        self._clock = clock
        self._mark: tuple[int, Path, int] | None = None
        self._was_s = 0.0
        self._at_s = 0.0

    def lasts_s(self, files: Iterable[Path]) -> float | None:
        """Of the newest of the files; None where there is none."""
        stats = ((path, found) for path in files if (found := _stat(path)) is not None)
        newest = max(((found.st_mtime_ns, path, found.st_size) for path, found in stats), default=None)
        if newest is None:
            return None
        now_s = self._clock()
        if newest != self._mark:
            age_s = max(0.0, self._now_there_unix_s() - newest[0] / 1e9)
            self._was_s = age_s if self._mark is None else min(age_s, now_s - self._at_s)
            self._mark, self._at_s = newest, now_s
        return self._was_s + now_s - self._at_s
