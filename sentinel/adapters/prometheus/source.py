"""A run's records from Prometheus alone: the same contract as the metrics journals'."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

from sentinel.adapters.prometheus.api import Api, TooMuch
from sentinel.adapters.prometheus.scrapes import Looked, Scrape, Steps, scrapes_of
from sentinel.adapters.prometheus.shared_queries import SharedQueries
from sentinel.vocabulary.errors import ScrapeError
from sentinel.vocabulary.sample import Record, Sample

_LATE_S = 60.0  # what a scrape may arrive late, and clocks may be apart: so much is asked for again, and beyond now
_SWEPT_EVERY_S = 60.0  # how often it is asked for again; of a run that has been silent for longer, a fifth as often
_SILENT_AFTER_S = 150.0  # with a newest scrape so old, a run has ended, has not begun, or its scrapes are held up
_SEEN_AGAIN_S = 30.0  # of a silent run only so much is looked at; once there is something, it catches up
_OVERLAP_S = 2.0
_FORGOTTEN_AFTER_S = 2 * _LATE_S + 2 * _SWEPT_EVERY_S

_FIRST_PIECE_S = 600.0
_SHORTEST_PIECE_S = 1.0
_MANY_VALUES = 100_000  # an answer of more makes the next piece shorter, one of less than a quarter longer

# Requests and seconds of one poll; what is left is for the next, so that a turn of the watch comes to its end.
_MOST_REQUESTS = 100
_LONGEST_POLL_S = 30.0


@dataclass(eq=False)
class ScrapedRuns:
    """The runs that one Prometheus is asked about: one of them, or a fleet's. For any threads, but one for each run."""

    api: Api
    _: KW_ONLY
    selector: str | None = None
    longest_poll_s: float = _LONGEST_POLL_S
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.queries = SharedQueries(self.api, self.selector)

    def run(self, name: str, lookback_s: float = 86_400.0) -> ScrapedRun:
        return ScrapedRun(self, name, lookback_s)


class ScrapedRun:
    """What Prometheus scraped of one run, from `lookback_s` ago on. It catches up by itself, in pieces, and follows
    together with the others: from the last scrape that it knows on, so that what Prometheus did not tell while it was
    away is told afterwards. What it did not scrape meanwhile, nobody knows but the trainer's counters. Once a minute it
    goes back for what has arrived late, behind newer scrapes."""

    def __init__(self, runs: ScrapedRuns, name: str, lookback_s: float) -> None:
        self._runs = runs
        self._member = runs.queries.member(name)
        self._lookback_s = lookback_s
        self._steps = Steps()
        self._known: dict[Looked, set[float]] = {}
        self._newest: float | None = None
        self._newest_of: dict[Looked, float] = {}
        self._forgotten = 0.0  # up to when, Unix seconds, it is not recorded any more which scrapes were known
        self._behind = True
        self._read_to: float | None = None  # while it is behind, where the last poll had to stop
        self._swept = 0.0
        self._piece_s = _FIRST_PIECE_S
        self._records: list[Record] = []
        self._given: dict[int, tuple[float, float]] = {}  # when an attempt's first and newest sample were scraped

    @property
    def unreadable(self) -> int:
        """Scrapes that were passed over, so far: their step was before one that was seen already."""
        return self._steps.gone_back

    def new(self) -> list[Record]:
        """What is new. ScrapeError while Prometheus can't be asked; what was got until then comes with the next."""
        now = self._runs.now()
        self._member.turn(self._runs.monotonic())
        if not self._behind:  # it is, where it is time to go back for what has arrived late
            self._behind = now - self._swept > _SWEPT_EVERY_S * (5 if self._silent(now) else 1)
        if not self._behind:
            self._follow(now)
        if self._behind:
            self._catch_up(now)
        records, self._records = self._records, []
        for record in records:
            if isinstance(record, Sample):
                first, _ = self._given.get(record.attempt, (record.time_unix_s, 0.0))
                self._given[record.attempt] = (first, record.time_unix_s)
        return records

    def again(self, attempt: int) -> Iterator[Sample]:
        """The attempt's samples that it has given, as far as `lookback_s` goes back from the newest, asked for anew.
        None is kept: Prometheus remembers for longer than we look back. ScrapeError when it can't be asked."""
        first, newest = self._given.get(attempt, (math.inf, -math.inf))
        first, steps, piece_s = max(first, newest - self._lookback_s), Steps(), _FIRST_PIECE_S
        since = first
        while since <= newest:
            end = min(since + piece_s, newest)
            try:
                series = self._runs.queries.alone(self._member, since, end, self._runs.monotonic())
            except TooMuch:
                piece_s = self._half(piece_s)
                continue
            for scrape in scrapes_of(series):
                if scrape.attempt == attempt and scrape.whole and first <= scrape.time_unix_s <= newest:
                    yield from (record for record in steps.take(scrape) if isinstance(record, Sample))
            if end == newest:
                return
            since = end

    def _follow(self, now: float) -> None:
        try:
            answers = self._runs.queries.new(self._member, self._since(now), now + _LATE_S, self._runs.monotonic())
        except TooMuch:
            self._behind = True
            return
        for answer in answers:
            scrapes = scrapes_of(answer.series, self._known)
            newest = (self._newest_of.get((s.attempt, s.by), -math.inf) for s in scrapes if s.whole)
            if any(answer.since > at for at in newest):  # there may be more between what is new and what is known
                self._behind = True
                return
            self._take(scrapes)

    def _since(self, now: float) -> float:
        """From the newest scrape on, of the one who is furthest behind: an attempt, or another server's view of it."""
        if self._newest is None or self._silent(now):
            return now - _SEEN_AGAIN_S
        return min(at for at in self._newest_of.values() if at > self._newest - _LATE_S) - _OVERLAP_S

    def _silent(self, now: float) -> bool:
        return self._newest is None or self._newest < now - _SILENT_AFTER_S

    def _catch_up(self, now: float) -> None:
        began_s, until = self._runs.monotonic(), now + _LATE_S
        since = now - self._lookback_s
        if self._read_to is not None:
            since = max(since, self._read_to)
        elif self._newest is not None:
            since = max(since, self._newest - _LATE_S - _SWEPT_EVERY_S)
        longest_s = self._lookback_s + 2 * _LATE_S
        for _ in range(_MOST_REQUESTS):
            if self._runs.monotonic() - began_s > self._runs.longest_poll_s:
                return
            end = min(since + self._piece_s, until)
            try:
                series = self._runs.queries.alone(self._member, since, end, self._runs.monotonic())
            except TooMuch:
                self._piece_s = self._half(self._piece_s)
                longest_s = self._piece_s
                continue
            self._take(scrapes_of(series, self._known))
            self._pace(sum(len(one.values) for one in series), longest_s)
            since = self._read_to = end
            if since >= until:
                self._behind, self._read_to = False, None
                self._member.since = self._since(now)
                at_random = zlib.crc32(self._member.run.encode("utf-8", "replace")) % 1000 / 1000
                self._swept = now if self._swept else now - at_random * _SWEPT_EVERY_S  # not all runs at once
                return

    def _half(self, piece_s: float) -> float:
        if piece_s <= _SHORTEST_PIECE_S:
            raise ScrapeError(self._runs.queries.host, "a second of this run is more than one answer holds")
        return max(_SHORTEST_PIECE_S, piece_s / 2)

    def _pace(self, values: int, longest_s: float) -> None:
        if values > _MANY_VALUES:
            self._piece_s = max(_SHORTEST_PIECE_S, self._piece_s / 2)
        elif values < _MANY_VALUES / 4:
            self._piece_s = min(longest_s, 2 * self._piece_s)

    def _take(self, scrapes: list[Scrape]) -> None:
        for scrape in scrapes:
            if not scrape.whole or scrape.time_unix_s <= self._forgotten:
                continue
            looked, at = (scrape.attempt, scrape.by), scrape.time_unix_s
            self._known.setdefault(looked, set()).add(at)
            self._newest = max(self._newest or at, at)
            self._newest_of[looked] = max(self._newest_of.get(looked, at), at)
            self._records += self._steps.take(scrape)
        if self._newest is not None and self._newest - _FORGOTTEN_AFTER_S > self._forgotten + _LATE_S:
            self._forgotten = self._newest - _FORGOTTEN_AFTER_S
            recent = {looked: {at for at in known if at > self._forgotten} for looked, known in self._known.items()}
            self._known = {looked: known for looked, known in recent.items() if known}
            self._newest_of = {looked: self._newest_of[looked] for looked in self._known}
