"""Whether two attempts train at the same time, or the newest is another run's: what their own records say of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sentinel.judge.history import Attempt, History
from sentinel.vocabulary.sample import RunStarted

_STEPS = 3  # an older attempt's steps since the newest began: fewer may be a clock's doing, or a cache's
_CACHED_S = 60.0  # seconds for which a filesystem's cache may still show older samples
_SILENT_S = 600.0  # seconds without a step after which an attempt that has not said its end is over all the same


@dataclass(slots=True)
class _Seen:
    before: int  # samples that an older attempt had made when the newest was first seen
    made: int  # and has made now
    at_s: float
    since_s: float
    late: int  # samples that it had made a minute after that: no cache shows older ones any more


class Overlap:
    """Whether an attempt goes on although a newer one has begun. Job ids are nobody's proof: an array without its
    throttle, a job that was submitted by hand, or one that its node never stopped begins beside the other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest = 0
        self._seen: dict[int, _Seen] = {}

    def sentence(self, history: History) -> str | None:
        """What a person has to know of it; None when one attempt at most trains. Steps that were found since the newest
        attempt was, and that carry a later time than its start, or that came a minute later still: a filesystem that
        shows an old file's end late is not enough, and a clock that was set back hides nothing."""
        newest, now_s = history.latest, self._clock()
        if newest is None:
            return None
        attempts = [attempt for number, attempt in history.attempts.items() if number != newest.number]
        if newest.number != self._newest:
            self._newest = newest.number
            self._seen = {a.number: _Seen(a.made, a.made, now_s, now_s, a.made) for a in attempts}
        beside = None
        for attempt in attempts:
            seen = self._seen.setdefault(attempt.number, _Seen(0, 0, now_s, now_s, attempt.made))
            if attempt.made != seen.made:
                seen.made, seen.at_s = attempt.made, now_s
            if now_s - seen.since_s < _CACHED_S:
                seen.late = attempt.made
            few, over = seen.made - seen.before < _STEPS, now_s - seen.at_s >= _SILENT_S
            if few or over or newest.started is None or attempt.finished is not None:
                continue
            goes_on = seen.made - seen.late >= _STEPS
            if goes_on or attempt.samples[-1].time_unix_s > newest.started.time_unix_s:
                beside = attempt
        if beside is None:
            return None
        number, step = beside.number, beside.samples[-1].global_step
        return (
            f"attempts {number}{_where(beside)} and {newest.number}{_where(newest)} train at the same time: attempt "
            f"{number} has come to step {step} since the other began; each writes the other's checkpoints over"
        )


def stranger(started: Sequence[RunStarted], name: str | None) -> str | None:
    """That the newest attempt is another run's, as a sentence: it began from scratch, for no rollback, and calls itself
    by a name that no attempt before it had, and the configuration has not. None where nothing says so."""
    if len(started) < 2 or started[-1].run is None:
        return None
    newest, known = started[-1], {one.run for one in started[:-1] if one.run is not None}
    if not known or newest.run in known | {name} or newest.resumed_from or newest.rollback is not None:
        return None
    return (
        f"attempt {newest.attempt} reports the run {newest.run!r} from scratch, and those before it "
        f"{' and '.join(map(repr, sorted(known)))}: it may be another training that reports to this state folder. "
        f"Nothing is done until an attempt of these begins, or [run] name is {newest.run!r}"
    )


def _where(attempt: Attempt) -> str:
    started = attempt.started
    if started is None:
        return ""
    return f" (job {started.job_id})" if started.job_id else f" (process {started.pid} on {started.host})"
