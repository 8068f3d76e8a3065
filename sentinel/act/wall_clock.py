"""Whether the wall clock was set, and how old the incident log's events are then: as old as they were before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sentinel.plan.incident.log_events import IncidentEvent

_SET_S = 2.0  # by which the wall clock and the monotonic one may part between two looks
Clock = Callable[[], float]


class WallClock:
    """Compares the wall clock with the monotonic one."""

    def __init__(self, now: Clock = time.time, clock: Clock = time.monotonic) -> None:
        self._now, self._clock = now, clock
        self._at = now(), clock()

    def set_by_s(self) -> tuple[float, float]:
        """Seconds by which it was set since the last call, 0 where it just went on; and how long ago that call was."""
        before, self._at = self._at, (self._now(), self._clock())
        passed_s = self._at[1] - before[1]
        set_by_s = self._at[0] - before[0] - passed_s
        return (set_by_s if abs(set_by_s) >= _SET_S else 0.0), passed_s

    @property
    def now_unix_s(self) -> float:
        """What it said at the last call."""
        return self._at[0]


class EventTimes:
    """The incident log's times on the axis of now. An event that lies in the future when it is first seen was written
    by another clock: it counts from then on."""

    def __init__(self, wall: WallClock | None = None) -> None:
        self._wall = wall or WallClock()
        self._ahead_s: list[float] = []  # of each event: its time as it counts, less its time as it was written

    def of(self, events: Sequence[IncidentEvent], now_unix_s: float) -> tuple[tuple[IncidentEvent, ...], float]:
        """The events with times that can be compared with now, and now: `now_unix_s`, if the clock was not set since
        the last look."""
        set_by_s, passed_s = self._wall.set_by_s()
        if set_by_s:
            self._ahead_s, now_unix_s = [ahead_s + set_by_s for ahead_s in self._ahead_s], self._wall.now_unix_s
        del self._ahead_s[len(events) :]
        for event in events[len(self._ahead_s) :]:
            self._ahead_s.append(_ahead_s(now_unix_s - event.time_unix_s, set_by_s, passed_s))
        timed = zip(events, self._ahead_s, strict=True)
        return tuple(event.shifted(ahead_s) if ahead_s else event for event, ahead_s in timed), now_unix_s


def _ahead_s(age_s: float, set_by_s: float, passed_s: float) -> float:
    """Of an event that is new. Where the clock was set since the last look, it was written before that or after it: its
    age is one that fits."""
    if not set_by_s:
        return min(0.0, age_s) if age_s < -_SET_S else 0.0
    for ahead_s in (0.0, set_by_s):
        if -_SET_S <= age_s - ahead_s <= passed_s + _SET_S:
            return ahead_s
    return age_s
