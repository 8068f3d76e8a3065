"""Two attempts of one run that train at the same time: each writes the other's checkpoints over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.judge.history import Attempt, History

__all__ = ["Overlap"]

_STEPS = 3
"""An older attempt's steps since the newest began: fewer may be a clock's doing, or a cache's."""

_SILENT_S = 600.0
"""Seconds without a step after which an attempt that has not said its end is over all the same."""


@dataclass(slots=True)
class _Seen:
    """What an older attempt had made when the newest was first seen, and has now."""

    before: int
    made: int
    at_s: float


class Overlap:
    """Whether an attempt goes on although a newer one has begun. Job ids are nobody's proof: an array without its
    throttle, a job that was submitted by hand, or one that its node never stopped begins beside the other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest = 0
        self._seen: dict[int, _Seen] = {}

    def sentence(self, history: History) -> str | None:
        """What a person has to know of it; None when one attempt at most trains.

        Steps that were found since the newest attempt was, and that carry a later time than its start: a clock that is
        set wrong, or a filesystem that shows an old file's end late, is not enough.
        """
        newest, now_s = history.latest, self._clock()
        if newest is None:
            return None
        older = [attempt for number, attempt in history.attempts.items() if number != newest.number]
        if newest.number != self._newest:
            self._newest = newest.number
            self._seen = {a.number: _Seen(before=a.made, made=a.made, at_s=now_s) for a in older}
        for attempt in older:
            seen = self._seen.setdefault(attempt.number, _Seen(before=0, made=0, at_s=now_s))
            if attempt.made != seen.made:
                seen.made, seen.at_s = attempt.made, now_s
        beside = [a for a in older if self._goes_on(a, newest) and now_s - self._seen[a.number].at_s < _SILENT_S]
        return _sentence(beside[-1], newest) if beside else None

    def _goes_on(self, attempt: Attempt, newest: Attempt) -> bool:
        seen = self._seen[attempt.number]
        if seen.made - seen.before < _STEPS or newest.started is None or attempt.finished is not None:
            return False
        return attempt.samples[-1].time_unix_s > newest.started.time_unix_s


def _sentence(older: Attempt, newest: Attempt) -> str:
    step = older.samples[-1].global_step
    return (
        f"attempts {older.number}{_where(older)} and {newest.number}{_where(newest)} train at the same time: attempt "
        f"{older.number} has come to step {step} since the other began; each writes the other's checkpoints over"
    )


def _where(attempt: Attempt) -> str:
    started = attempt.started
    if started is None:
        return ""
    return f" (job {started.job_id})" if started.job_id else f" (process {started.pid} on {started.host})"
