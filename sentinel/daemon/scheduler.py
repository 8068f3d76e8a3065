"""The turns of many runs, each at its own interval: spread over time, in parallel threads, one at a time per run."""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Protocol

log = logging.getLogger(__name__)

_AT_ONCE = 32  # turns under way at the same time: a turn waits for filesystems more than it computes
_HANGS_S = 5.0  # after which a turn is not counted among them: it waits for a filesystem or a scheduler that hangs
_LAST_S = 5.0  # that all runs together may take to leave
_LOOK_AGAIN_S = 0.1
_STAY = 8  # idle threads that are kept; a further one ends


class SignalFlag:
    """Set, cleared and waited for as a threading.Event; one thread waits.

    A signal handler runs between two instructions of the main thread. Where that thread is inside Event.wait or
    Event.clear and has the event's lock, Event.set never returns. SimpleQueue.put may interrupt any other call of the
    same queue.
    """

    def __init__(self) -> None:
        self._set: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Callable from any thread, and from a signal handler."""
        self._set.put(None)

    def is_set(self) -> bool:
        return not self._set.empty()

    def clear(self) -> None:
        while self.is_set():
            self._set.get()

    def wait(self, timeout_s: float) -> None:
        """Returns when the flag is set, or after the timeout; a set flag stays set."""
        try:
            self._set.get(timeout=timeout_s)
        except Empty:
            return
        self.set()


class Member(Protocol):
    @property
    def pace_s(self) -> float:
        """Seconds from one turn to the next."""

    def turn(self, late_s: float) -> bool:
        """One turn, which begins `late_s` after it was due; returns whether another is to come."""

    def leave(self, within_s: float) -> None:
        """The last call, in place of a turn."""


Work = Callable[[], None]


class Workers:
    """Threads without a limit: work never waits for a free one, where all are busy or hang another one is started.

    The threads are daemons: none outlives the process.
    """

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


@dataclass(slots=True, eq=False)
class _Entry:
    member: Member
    second_s: float  # time of the second turn; the first turns of all runs are due at once
    due_s: float
    turns: int = 0
    began_s: float | None = None  # start of the turn under way; None between turns
    leaving: bool = False


class Fleet:
    """The runs under watch and when their turns are due. Its methods are called by one thread; turns run in others."""

    def __init__(self, wake: SignalFlag, clock: Callable[[], float] = time.monotonic) -> None:
        self._wake = wake
        self._clock = clock
        self._workers = Workers()
        self._entries: dict[Member, _Entry] = {}
        self._under_way: set[_Entry] = set()
        self._due: list[tuple[float, int, _Entry]] = []
        self._numbers = itertools.count()
        self.turns = 0  # completed so far
        self._ended: SimpleQueue[tuple[_Entry, bool]] = SimpleQueue()
        self._ends_s: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._entries))

    def add(self, member: Member) -> None:
        """Adds a run: its first turn is due now, later ones at a phase of their own, so that they are spread."""
        now_s = self._clock()
        entry = _Entry(member=member, second_s=now_s + random.random() * member.pace_s, due_s=now_s)  # noqa: S311 - no secret
        self._entries[member] = entry
        self._put(entry, now_s)

    def hurry(self, member: Member) -> None:
        entry = self._entries.get(member)
        if entry is not None and entry.began_s is None:
            self._put(entry, self._clock())

    def remove(self, member: Member) -> None:
        """Removes the run, once the turn under way has ended."""
        entry = self._entries.get(member)
        if entry is not None:
            entry.leaving = True
            self.hurry(member)

    def end(self) -> None:
        if self._ends_s is None:
            self._ends_s = self._clock() + _LAST_S
            for member in self:
                self.remove(member)

    def hanging(self) -> list[tuple[Member, float]]:
        """After `end`: runs whose turn is still under way after 5 s, with the seconds since it began."""
        now_s = self._clock()
        if self._ends_s is None or now_s < self._ends_s:
            return []
        return [(entry.member, now_s - entry.began_s) for entry in self._under_way if entry.began_s is not None]

    def round(self) -> None:
        """Begins the turns that are due, and sleeps until the next is due, a turn ends, or `wake` is set.

        After `end` it sleeps only while there is a run."""
        self._collect()
        pause_s = self._begin()
        if self._entries or self._ends_s is None:
            self._wake.wait(pause_s)
        self._wake.clear()
        self._collect()

    def _collect(self) -> None:
        while True:
            try:
                entry, goes_on = self._ended.get_nowait()
            except Empty:
                return
            self._under_way.discard(entry)
            entry.began_s = None
            entry.turns += 1
            self.turns += 1
            if goes_on:
                self._put(entry, self._clock() if entry.leaving else self._next_s(entry))
            else:
                self._entries.pop(entry.member, None)

    def _next_s(self, entry: _Entry) -> float:
        """Each run keeps its own phase; after a long turn there is a pause of half an interval at least."""
        pace_s = entry.member.pace_s
        if entry.turns == 1:
            return max(entry.second_s, self._clock())
        return max(entry.due_s + pace_s, self._clock() + pace_s / 2)

    def _put(self, entry: _Entry, due_s: float) -> None:
        entry.due_s = due_s
        heapq.heappush(self._due, (due_s, next(self._numbers), entry))

    def _begin(self) -> float:
        """Begins the turns that are due; returns the seconds until the next one is."""
        while self._due:
            due_s, _, entry = self._due[0]
            if entry.began_s is not None or due_s != entry.due_s or entry.member not in self._entries:
                heapq.heappop(self._due)  # it was scheduled earlier by `hurry`
                continue
            now_s = self._clock()
            if due_s > now_s:
                return due_s - now_s
            if not self._has_room(now_s):
                return _LOOK_AGAIN_S
            heapq.heappop(self._due)
            self._make(entry, now_s)
        return 60.0 if self._ends_s is None else _LAST_S

    def _make(self, entry: _Entry, now_s: float) -> None:
        late_s, entry.began_s = now_s - entry.due_s, now_s
        self._under_way.add(entry)
        goes_on = True

        def work() -> None:
            nonlocal goes_on
            if entry.leaving:
                goes_on = False
                entry.member.leave(_LAST_S if self._ends_s is None else max(0.0, self._ends_s - self._clock()))
            else:
                goes_on = entry.member.turn(late_s)

        def then() -> None:
            self._ended.put((entry, goes_on))
            self._wake.set()

        self._workers.do(work, then)

    def _has_room(self, now_s: float) -> bool:
        lasted_s = (now_s - entry.began_s for entry in self._under_way if entry.began_s is not None)
        return sum(lasts_s < _HANGS_S for lasts_s in lasted_s) < _AT_ONCE
