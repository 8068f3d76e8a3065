"""When the files of a run were written last, and for how long nothing has come of it: by clocks that nobody sets."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import recognise
from sentinel.judge.history import History
from sentinel.plan.observation import Sign

_CHECKPOINT_FOLDERS = 2
_CHECKPOINT_DEPTH = 3
_FILES = 4096  # files of a checkpoint that are looked at, at most: of thousands of shards the others tell the same
_CLOCK_KNOWN_S = 600.0  # seconds for which the difference between two clocks is taken to be the same
Clock = Callable[[], float]


class Signs:
    """Looks at modification times, and remembers what it has seen change: that no clock can falsify."""

    def __init__(
        self, state_dir: Path, checkpoints: Path, *, now: Clock = time.time, clock: Clock = time.monotonic
    ) -> None:
        self._state_dir = state_dir
        self._checkpoints = checkpoints
        self._now = now
        self._clock = clock
        self._ahead: dict[int, tuple[float, float]] = {}
        self._seen: dict[Path, tuple[tuple[int, int], float | None]] = {}

    def look(self, attempts: Iterable[int], logs: Iterable[Path], *, sure_s: float) -> tuple[Sign, ...]:
        """The newest file of each kind. An age above `sure_s` is checked against the filesystem's own clock."""
        log = self._newest(matching(logs), sure_s, checkpoint=False)
        saved = self._newest(self.saved(), sure_s, checkpoint=True)
        return (*self.of_journals(attempts, sure_s=sure_s), *(sign for sign in (log, saved) if sign is not None))

    def of_journals(self, attempts: Iterable[int], *, sure_s: float) -> tuple[Sign, ...]:
        journals = self._state_dir / "attempts"
        found = (self._sign(journals / f"{n:04d}.jsonl", sure_s, attempt=n) for n in attempts)
        return tuple(sign for sign in found if sign is not None)

    def now_there_unix_s(self) -> float:
        """Now, by the clock of the state folder's filesystem; by this machine's where nothing can be made there."""
        found = _stat(self._state_dir)
        return self._now() + (0.0 if found is None else self._ahead_s(found.st_dev))

    def saved(self) -> Iterator[Path]:
        """Files of the newest checkpoints. Not the folder itself, nor `latest`: a rollback changes those."""
        with contextlib.suppress(OSError):
            found = [p for p in self._checkpoints.iterdir() if not p.name.startswith(".")]
            folders = [p for p in found if p.is_dir()]
            for folder in sorted(folders, key=modified_unix_s)[-_CHECKPOINT_FOLDERS:]:
                yield from _files(folder, _CHECKPOINT_DEPTH)
            yield from (p for p in found if recognise(p.name) is not None and p.is_file())

    def _newest(self, files: Iterable[Path], sure_s: float, *, checkpoint: bool) -> Sign | None:
        newest = max(files, key=modified_unix_s, default=None)
        return None if newest is None else self._sign(newest, sure_s, checkpoint=checkpoint)

    def _sign(self, path: Path, sure_s: float, *, attempt: int | None = None, checkpoint: bool = False) -> Sign | None:
        if (found := _stat(path)) is None:
            return None
        age_s = self._now() - found.st_mtime
        if age_s >= sure_s:  # it decides: a clock that is an hour ahead must not
            age_s = min(age_s, self._now() + self._ahead_s(found.st_dev) - found.st_mtime)
        mark, now_s = (found.st_mtime_ns, found.st_size), self._clock()
        before = self._seen.get(path)
        changed_s = None if before is None else before[1] if before[0] == mark else now_s
        self._seen[path] = (mark, changed_s)
        if changed_s is not None:
            age_s = min(age_s, now_s - changed_s)
        return Sign(what=str(path), age_s=age_s, attempt=attempt, checkpoint=checkpoint)

    def _ahead_s(self, device: int) -> float:
        """How far the clock of that filesystem is ahead of this machine's; 0 where no file can be made there."""
        known = self._ahead.get(device)
        if known is not None and self._clock() - known[1] < _CLOCK_KNOWN_S:
            return known[0]
        ahead_s = 0.0
        for place in (self._state_dir, self._checkpoints):
            with contextlib.suppress(OSError):
                if place.stat().st_dev == device:
                    ahead_s = _made_now_unix_s(place) - self._now()
                    break
        self._ahead[device] = (ahead_s, self._clock())
        return ahead_s


def matching(patterns: Iterable[Path]) -> Iterator[Path]:
    """Paths, and what they match where they are patterns."""
    for pattern in patterns:
        yield pattern
        with contextlib.suppress(OSError, ValueError):
            if "*" in pattern.name:
                yield from pattern.parent.glob(pattern.name)


def modified_unix_s(path: Path) -> float:
    """When the file was written last, by its filesystem's clock; 0 where it can't be seen."""
    found = _stat(path)
    return 0.0 if found is None else found.st_mtime


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _files(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for number, entry in enumerate(os.scandir(folder)):
            if number > _FILES:
                return
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            elif depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), depth - 1)


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
