"""One question to Prometheus for many runs: whoever asks takes along those that are to ask next."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from threading import Condition
from typing import Protocol
from weakref import WeakSet

from sentinel.adapters.prometheus.api import NotUnderstood, Series, TooMuch
from sentinel.adapters.prometheus.scrapes import selector_of
from sentinel.vocabulary.errors import ScrapeError

__all__ = ["Answering", "Seat", "Stretch", "Together"]

_MOST = 500
"""Runs of one question: an answer of five seconds is five megabytes then, and the question some kilobytes."""

_AHEAD_S = 1.0
"""Who is to ask within so many seconds is taken along, and who should have asked already."""

_APART_S = 15.0
"""Those taken along want to know of what is at most so much longer ago: else all would be told what one has missed."""

_PATIENCE_S = 2.0
"""How long a run waits for the answer that another asked for on its behalf; then nothing is new in this turn."""

_FAILED_FOR_S = 1.0
"""How long a Prometheus that did not answer one run is not asked by the others: each would wait as long."""


class Answering(Protocol):
    """A Prometheus that answers: Api."""

    @property
    def host(self) -> str:
        """Whom errors name."""
        ...

    def scraped(self, selector: str, since: float, until: float) -> list[Series]:
        """See Api.scraped."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What was scraped of one run from `since` on, Unix seconds; or a little before."""

    since: float
    told_s: float
    """When it was asked for, by the monotonic clock."""

    series: list[Series]


class Seat:
    """One run's place at the table. Its run asks in one thread at a time; whoever asks may leave something there."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.waiting: Stretch | None = None
        """What another was told of it."""

        self.asking = False
        """Whether somebody asks for it, just now."""

        self.since: float | None = None
        """From when on it has to be told, Unix seconds; None where it asks alone."""

        self.turn_s = -math.inf
        """When its last turn was, by the monotonic clock."""

        self.pace_s = math.inf
        """Seconds between its turns, of late; inf before the second one."""

    @property
    def expected_s(self) -> float:
        """When its next turn may be, if it keeps its pace; better taken along early than one who asks by itself."""
        return self.turn_s + 0.9 * self.pace_s

    def turn(self, now_s: float) -> None:
        """The run's next turn begins."""
        gap_s = now_s - self.turn_s
        self.pace_s = (self.pace_s + gap_s) / 2 if math.isfinite(self.pace_s) else gap_s
        self.turn_s = now_s

    def is_fresh(self, now_s: float) -> bool:
        """Whether what waits for it is nearly all that there is by now: half a turn's worth is not worth a question."""
        waits_s = math.inf if self.waiting is None else now_s - self.waiting.told_s
        return waits_s <= max(_AHEAD_S, self.pace_s / 2 if math.isfinite(self.pace_s) else 0.0)


class Together:
    """The runs that one Prometheus is asked about, from any threads. None of them leads."""

    def __init__(self, api: Answering, more: str | None = None) -> None:
        self._api = api
        self._more = more
        self._seats: WeakSet[Seat] = WeakSet()
        self._changed = Condition()
        self._most = _MOST
        self._failure: tuple[Seat, float, str] | None = None
        """Who was not answered, when, and why."""

        self._trying = 0

    @property
    def host(self) -> str:
        """Whom errors name."""
        return self._api.host

    def seat(self, run: str) -> Seat:
        """A place for one more run; it is given up with its last reference."""
        seat = Seat(run)
        with self._changed:
            self._seats.add(seat)
        return seat

    def alone(self, seat: Seat, since: float, until: float, now_s: float) -> list[Series]:
        """What was scraped of one run, asked for by itself. ScrapeError, TooMuch."""
        with self._changed:
            seat.since = seat.waiting = None
            self._spare(seat, now_s)
        return self._told([seat], since, until, now_s)

    def new(self, seat: Seat, since: float, until: float, now_s: float) -> list[Stretch]:
        """What is new of a run since: what it was told when others asked, or what it asks for now, taking others along.

        ScrapeError, TooMuch; now_s is the monotonic clock's.
        """
        with self._changed:
            seat.since = since
            if not self._changed.wait_for(lambda: not seat.asking, _PATIENCE_S):
                return []
            is_fresh, told, seat.waiting = seat.is_fresh(now_s), seat.waiting, None
            if told is not None and is_fresh:
                return [told]
            self._spare(seat, now_s)
            table = self._table(seat, since, now_s)
            for one in table:
                one.asking = True
            since = min(one.since for one in table if one.since is not None)
        try:
            asked = Stretch(since=since, told_s=now_s, series=self._asked(table, since, until, now_s))
        finally:
            with self._changed:
                for one in table:
                    one.asking = False
                self._changed.notify_all()
        return [asked] if told is None else [told, asked]

    def _table(self, seat: Seat, since: float, now_s: float) -> list[Seat]:
        """Who asks, and the next to ask who want to know as much."""
        coming = [
            one
            for one in self._seats
            if one is not seat
            and one.expected_s <= now_s + _AHEAD_S
            and not one.asking
            and one.waiting is None
            and one.since is not None
            and abs(one.since - since) <= _APART_S
        ]
        coming.sort(key=lambda one: one.expected_s)
        return [seat, *coming[: self._most - 1]]

    def _asked(self, table: list[Seat], since: float, until: float, now_s: float) -> list[Series]:
        """The first one's series; those of the others are left at their places."""
        seat, *others = table
        try:
            told = self._told(table, since, until, now_s)
        except (TooMuch, NotUnderstood):
            if not others:
                raise
            self._most = 1  # whichever of them it was: it grows again while all goes well
            return self._told([seat], since, until, now_s)
        if not others:
            self._most = min(_MOST, 2 * self._most)
            return told
        by_run: defaultdict[str, list[Series]] = defaultdict(list)
        for one in told:
            by_run[one.labels.get("run", "")].append(one)
        with self._changed:
            self._most = min(_MOST, 2 * self._most)
            for other in others:
                other.waiting = Stretch(since=since, told_s=now_s, series=by_run.get(other.run, []))
        return by_run.get(seat.run, [])

    def _spare(self, seat: Seat, now_s: float) -> None:
        """ScrapeError where another run was not answered a moment ago, or has not been since and asks again now."""
        if self._failure is None:
            return
        failed, at_s, why = self._failure
        if failed is not seat and (self._trying or now_s - at_s < _FAILED_FOR_S):
            raise ScrapeError(self._api.host, why)

    def _told(self, table: list[Seat], since: float, until: float, now_s: float) -> list[Series]:
        runs = sorted({seat.run for seat in table})
        with self._changed:
            self._trying += 1
        failure = self._failure
        try:
            series = self._api.scraped(selector_of(runs, self._more), since, until)
            failure = None
        except (TooMuch, NotUnderstood):
            failure = None
            raise
        except ScrapeError as error:
            failure = (table[0], now_s, error.why)
            raise
        finally:
            with self._changed:
                self._trying -= 1
                self._failure = failure
        return series
