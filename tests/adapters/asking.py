"""A Prometheus that holds what it is given, and runs that ask it, without a server."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from sentinel.adapters.prometheus.api import NotUnderstood, PromSeries, TooMuch
from sentinel.adapters.prometheus.source import ScrapedRuns
from sentinel.vocabulary.errors import ScrapeError
from sentinel.vocabulary.sample import Record


class Stored:
    """What a Prometheus holds, and answers to; it can be away, and it can find a stretch too long, or not bear a run.

    It holds a run's series, and the same of others under their names.
    """

    host = "stored"

    def __init__(self, series: Sequence[PromSeries], beside: Sequence[str] = ()) -> None:
        self.away, self.longest_s, self.asked, self.unbearable = False, math.inf, 0, ""
        self.asked_for: list[list[str]] = []
        self.hold(series, beside)

    def hold(self, series: Sequence[PromSeries], beside: Sequence[str] = ()) -> None:
        """From now on these, and no others."""
        self._of = {
            name: [PromSeries(labels=s.labels | {"run": name}, values=s.values) for s in series]
            for name in ("small", *beside)
        }

    def of(self, run: str) -> list[PromSeries]:
        """All of one run's."""
        return self._of[run]

    def scraped(self, selector: str, since: float, until: float) -> list[PromSeries]:
        """As Api's."""
        self.asked += 1
        selects = matcher(selector)
        self.asked_for.append([run for run in self._of if selects(run)])
        if self.away:
            raise ScrapeError(self.host, "away")
        if until - since > self.longest_s:
            raise TooMuch
        if self.unbearable and selects(self.unbearable):
            raise NotUnderstood(self.host, "it can't bear it")
        asked = [s for run, series in self._of.items() if selects(run) for s in series]
        return [s for s in asked if since <= s.values[0].at <= until]


def matcher(selector: str) -> Callable[[str], bool]:
    """Whether a run's name is selected, as Prometheus would say."""
    found = re.search(r'run(=~?)"((?:[^"\\]|\\.)*)"', selector)
    assert found is not None
    sign, quoted = found.groups()
    named = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], quoted)
    return (lambda run: re.fullmatch(named, run) is not None) if sign == "=~" else (lambda run: run == named)


class Asking:
    """The run `small` at the moments it is asked for, after others that are watched by the same daemon."""

    def __init__(self, stored: Stored, beside: Iterable[str] = (), lookback_s: float = 86_400.0) -> None:
        self._now = 0.0
        self.runs = ScrapedRuns(stored, now=lambda: self._now, monotonic=lambda: self._now)
        self._others = {name: self.runs.run(name, lookback_s) for name in beside}
        self.said_last: dict[str, ScrapeError | None] = dict.fromkeys(self._others)
        self.source = self.runs.run("small", lookback_s)

    def at(self, moments: Iterable[float]) -> list[Record]:
        """What is new at these, Unix seconds."""
        records: list[Record] = []
        for self._now in moments:
            for name, other in self._others.items():
                try:
                    other.new()
                    self.said_last[name] = None
                except ScrapeError as error:
                    self.said_last[name] = error
            records += self.source.new()
        return records
