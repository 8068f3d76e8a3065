"""Many runs' turns, each at its own pace: spread over time, never two of one run, and none waits for another's."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from sentinel.daemon.signal_flag import Bell
from sentinel.daemon.workers import Workers

__all__ = ["Fleet", "Member"]

_AT_ONCE = 8
"""Turns that may be under way together: a turn waits for filesystems more than it computes."""

_LONG_S = 0.5
"""A turn that is under way for longer acts, or hangs: it keeps no other from beginning, as long as a core is free."""

_HANGS_S = 10.0
"""A turn that is under way for so long waits for something: it is not counted among those that may be at once."""

_BUSY = 0.8
"""Share of one core above which the process computes as fast as it can: more turns at once would make none faster."""

_LAST_S = 5.0
"""What those that leave may take together."""

_MEASURED_S = 0.1
_LOOK_AGAIN_S = 0.1
_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples, without their whole parts, lie evenly between 0 and 1, however many there are."""


class Member(Protocol):
    """One run, as the loop sees it."""

    @property
    def pace_s(self) -> float:
        """Seconds from one turn to the next."""
        ...

    def turn(self, late_s: float) -> bool:
        """One turn, which begins so much later than it was due; whether another one is to come. Does not raise."""
        ...

    def leave(self, within_s: float) -> None:
        """The last one: it is watched no more, and may take so long. Does not raise."""
        ...


@dataclass(slots=True, eq=False)
class _Seat:
    member: Member
    second_s: float
    """When the second turn is due: the first ones come all at once."""

    due_s: float
    turns: int = 0
    began_s: float | None = None
    """When the turn that is under way began; None between turns."""

    leaving: bool = False


class Fleet:
    """Who is watched, and when it is whose turn. All of it is called by one thread; turns are made in others."""

    def __init__(self, nap: Bell, clock: Callable[[], float] = time.monotonic) -> None:
        self._nap = nap
        self._clock = clock
        self._workers = Workers()
        self._seats: dict[Member, _Seat] = {}
        self._under_way: set[_Seat] = set()
        self._due: list[tuple[float, int, _Seat]] = []
        self._numbers = itertools.count()
        self._joined = 0
        self.turns = 0
        """Turns that were made, so far."""

        self._back: SimpleQueue[tuple[_Seat, bool]] = SimpleQueue()
        self._measured = (clock(), time.process_time())
        self._ends_s: float | None = None

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._seats))

    def take_up(self, member: Member) -> None:
        """Its first turn is due now, and the next ones when few others' are."""
        now_s, phase = self._clock(), 1.0 - self._joined * _GOLDEN % 1.0
        self._joined += 1
        seat = _Seat(member=member, second_s=now_s + phase * member.pace_s, due_s=now_s)
        self._seats[member] = seat
        self._put(seat, now_s)

    def hurry(self, member: Member) -> None:
        """Its next turn is due now."""
        seat = self._seats.get(member)
        if seat is not None and seat.began_s is None:
            self._put(seat, self._clock())

    def let_go(self, member: Member) -> None:
        """It leaves, once the turn that is under way has ended."""
        seat = self._seats.get(member)
        if seat is not None:
            seat.leaving = True
            self.hurry(member)

    def end(self) -> None:
        """All leave."""
        if self._ends_s is None:
            self._ends_s = self._clock() + _LAST_S
            for member in self:
                self.let_go(member)

    def waited_for(self) -> list[tuple[Member, float]]:
        """After `end`: whose turns are under way although all should have left, and since how many seconds."""
        now_s = self._clock()
        if self._ends_s is None or now_s < self._ends_s:
            return []
        return [(seat.member, now_s - seat.began_s) for seat in self._under_way if seat.began_s is not None]

    def round(self) -> None:
        """Begins what is due, and sleeps until there is something to do, or the nap is over."""
        self._take_back()
        pause_s = self._begin()
        if self._seats:
            self._nap.wait(pause_s)
        self._nap.clear()
        self._take_back()

    def _take_back(self) -> None:
        """The turns that have ended."""
        while True:
            try:
                seat, goes_on = self._back.get_nowait()
            except Empty:
                return
            self._under_way.discard(seat)
            seat.began_s = None
            seat.turns += 1
            self.turns += 1
            if goes_on:
                self._put(seat, self._clock() if seat.leaving else self._next_s(seat))
            else:
                self._seats.pop(seat.member, None)

    def _next_s(self, seat: _Seat) -> float:
        """Each run keeps its own beat, so that they stay apart; after a long turn there is a pause all the same."""
        pace_s = seat.member.pace_s
        if seat.turns == 1:
            return max(seat.second_s, self._clock())
        return max(seat.due_s + pace_s, self._clock() + pace_s / 2)

    def _put(self, seat: _Seat, due_s: float) -> None:
        seat.due_s = due_s
        heapq.heappush(self._due, (due_s, next(self._numbers), seat))

    def _begin(self) -> float:
        """Begins the turns that are due; seconds until the next one is."""
        while self._due:
            due_s, _, seat = self._due[0]
            if seat.began_s is not None or due_s != seat.due_s or seat.member not in self._seats:
                heapq.heappop(self._due)  # it was put forward
                continue
            now_s = self._clock()
            if due_s > now_s:
                return due_s - now_s
            if not self._has_room(now_s):
                return _LOOK_AGAIN_S
            heapq.heappop(self._due)
            self._make(seat, now_s)
        return 60.0 if self._ends_s is None else _LAST_S

    def _make(self, seat: _Seat, now_s: float) -> None:
        late_s, seat.began_s = now_s - seat.due_s, now_s
        self._under_way.add(seat)
        goes_on = [True]

        def work() -> None:
            if seat.leaving:
                goes_on[0] = False
                seat.member.leave(_LAST_S if self._ends_s is None else max(0.0, self._ends_s - self._clock()))
            else:
                goes_on[0] = seat.member.turn(late_s)

        self._workers.do(work, partial(self._has_ended, seat, goes_on))

    def _has_ended(self, seat: _Seat, goes_on: list[bool]) -> None:
        self._back.put((seat, goes_on[0]))
        self._nap.set()

    def _has_room(self, now_s: float) -> bool:
        lasted_s = [now_s - seat.began_s for seat in self._under_way if seat.began_s is not None]
        if sum(lasts_s < _HANGS_S for lasts_s in lasted_s) < _AT_ONCE:
            return True
        return sum(lasts_s < _LONG_S for lasts_s in lasted_s) < _AT_ONCE and self._is_waiting(now_s)

    def _is_waiting(self, now_s: float) -> bool:
        """Whether the process has mostly waited of late, rather than computed."""
        before_s, used_s = self._measured
        if now_s - before_s < _MEASURED_S:
            return False
        used_now_s = time.process_time()
        self._measured = (now_s, used_now_s)
        return now_s - before_s < 1.0 and used_now_s - used_s < _BUSY * (now_s - before_s)
