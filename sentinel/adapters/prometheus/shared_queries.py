"""One query to Prometheus for many runs: the run that asks takes along those that are to ask next."""

from __future__ import annotations

import math
from collections import defaultdict
from threading import Condition
from typing import NamedTuple
from weakref import WeakSet

from sentinel.adapters.prometheus.api import Api, NotUnderstood, PromSeries, TooMuch
from sentinel.adapters.prometheus.scrapes import selector_of
from sentinel.vocabulary.errors import ScrapeError

_MOST = 500  # runs of one query: an answer of five seconds is five megabytes then, and the query some kilobytes
_AHEAD_S = 1.0  # a run that is to ask within so many seconds is taken along, and one that should have asked already
_APART_S = 15.0  # those taken along need to go back at most so much further: else all pay for what one has missed
_PATIENCE_S = 2.0  # how long a run waits for another's query on its behalf; then nothing is new in this turn
_FAILED_FOR_S = 1.0  # how long a Prometheus that did not answer one run is not asked by others: each would wait as long


class QueryAnswer(NamedTuple):
    """What was scraped of one run from `since` on, Unix seconds, or a little before; asked by the monotonic clock."""

    since: float
    asked_s: float
    series: list[PromSeries]


class QueryMember:
    """One run of the shared queries. Its run asks in one thread at a time; others' queries leave answers here."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.waiting: QueryAnswer | None = None  # from another run's query
        self.asking = False  # a query for it is under way
        self.since: float | None = None  # from when on it needs answers, Unix seconds; None where it asks alone
        self.turn_s = -math.inf  # its last turn, by the monotonic clock
        self.pace_s = math.inf  # seconds between its turns, of late; inf before the second one

    @property
    def expected_s(self) -> float:
        """When its next turn may be, if it keeps its pace; better taken along early than asking by itself."""
        return self.turn_s + 0.9 * self.pace_s

    def turn(self, now_s: float) -> None:
        gap_s = now_s - self.turn_s
        self.pace_s = (self.pace_s + gap_s) / 2 if math.isfinite(self.pace_s) else gap_s
        self.turn_s = now_s

    def is_fresh(self, now_s: float) -> bool:
        """Whether the waiting answer is nearly all that there is by now: half a turn's worth needs no query."""
        waits_s = math.inf if self.waiting is None else now_s - self.waiting.asked_s
        return waits_s <= max(_AHEAD_S, self.pace_s / 2 if math.isfinite(self.pace_s) else 0.0)


class SharedQueries:
    """The runs that one Prometheus is asked about, from any threads. None of them leads."""

    def __init__(self, api: Api, more: str | None = None) -> None:
        self.host = api.host
        self._api = api
        self._more = more
        self._members: WeakSet[QueryMember] = WeakSet()  # each is given up with its last reference
        self._changed = Condition()
        self._most = _MOST
        self._failure: tuple[QueryMember, float, str] | None = None  # which run was not answered, when, and why
        self._trying = 0

    def member(self, run: str) -> QueryMember:
        member = QueryMember(run)
        with self._changed:
            self._members.add(member)
        return member

    def alone(self, member: QueryMember, since: float, until: float, now_s: float) -> list[PromSeries]:
        """What was scraped of one run, asked for by itself. ScrapeError, TooMuch."""
        with self._changed:
            member.since = member.waiting = None
            self._spare(member, now_s)
        return self._ask([member], since, until, now_s)

    def new(self, member: QueryMember, since: float, until: float, now_s: float) -> list[QueryAnswer]:
        """What is new of a run since: from another run's query, or from one of its own that takes others along.
        ScrapeError, TooMuch; now_s is the monotonic clock's."""
        with self._changed:
            member.since = since
            if not self._changed.wait_for(lambda: not member.asking, _PATIENCE_S):
                return []
            is_fresh, waiting, member.waiting = member.is_fresh(now_s), member.waiting, None
            if waiting is not None and is_fresh:
                return [waiting]
            self._spare(member, now_s)
            group = [member, *self._coming(member, since, now_s)]
            for one in group:
                one.asking = True
            since = min(one.since for one in group if one.since is not None)
        try:
            answer = QueryAnswer(since, now_s, self._ask_for(group, since, until, now_s))
        finally:
            with self._changed:
                for one in group:
                    one.asking = False
                self._changed.notify_all()
        return [answer] if waiting is None else [waiting, answer]

    def _coming(self, member: QueryMember, since: float, now_s: float) -> list[QueryMember]:
        """The next to ask, who need to know as much."""
        coming = [
            one
            for one in self._members
            if one is not member
            and one.expected_s <= now_s + _AHEAD_S
            and not one.asking
            and one.waiting is None
            and one.since is not None
            and abs(one.since - since) <= _APART_S
        ]
        return sorted(coming, key=lambda one: one.expected_s)[: self._most - 1]

    def _ask_for(self, group: list[QueryMember], since: float, until: float, now_s: float) -> list[PromSeries]:
        """The first one's series; those of the others are left with them."""
        member, *others = group
        try:
            series = self._ask(group, since, until, now_s)
        except (TooMuch, NotUnderstood):
            if not others:
                raise
            self._most = 1  # whichever of them it was: it grows again while all goes well
            return self._ask([member], since, until, now_s)
        by_run: defaultdict[str, list[PromSeries]] = defaultdict(list)
        for one in series:
            by_run[one.labels.get("run", "")].append(one)
        with self._changed:
            self._most = min(_MOST, 2 * self._most)
            for other in others:
                other.waiting = QueryAnswer(since, now_s, by_run.get(other.run, []))
        return by_run.get(member.run, []) if others else series

    def _spare(self, member: QueryMember, now_s: float) -> None:
        """ScrapeError where another run was not answered a moment ago, or has not been since and asks again now."""
        if self._failure is not None:
            failed, at_s, why = self._failure
            if failed is not member and (self._trying or now_s - at_s < _FAILED_FOR_S):
                raise ScrapeError(self.host, why)

    def _ask(self, group: list[QueryMember], since: float, until: float, now_s: float) -> list[PromSeries]:
        runs = sorted({member.run for member in group})
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
            failure = (group[0], now_s, error.why)
            raise
        finally:
            with self._changed:
                self._trying -= 1
                self._failure = failure
        return series
