"""Reads what the source of the readings has new, into the run's history and to the judge."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from sentinel.act.following import Following
from sentinel.act.judge_cache import WHILE_READING, JudgeCache
from sentinel.act.settings_seen import starts_of
from sentinel.act.source import RereadSource, SampleCache, Source
from sentinel.judge.history import History
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import UNAVAILABLE
from sentinel.vocabulary.errors import ConfigError, ScrapeError
from sentinel.vocabulary.sample import RunStarted

log = logging.getLogger(__name__)


class SourceReader:
    """What it keeps does not grow with the run's steps: the source tells the rest again. `planned`: steps at which the
    configuration says that the settings change; `cache`: keeps the judge's state from one process to the next."""

    def __init__(
        self, source: Source, thresholds: Thresholds, planned: Sequence[int], cache: JudgeCache | None
    ) -> None:
        self._source = source if isinstance(source, RereadSource) else SampleCache(source)
        self._cache = cache
        self._has_read = False
        self.history = History(again=self._source.again)
        self.following = Following(self.history, thresholds, planned, *([cache.earlier] if cache else []))

    @property
    def started(self) -> tuple[RunStarted, ...]:
        """What the attempts reported at their starts, the newest last."""
        return starts_of(self.history)

    def read_and_judge(self, saved_steps: Callable[[], Iterable[int]]) -> str | None:
        """Takes what is new and brings the judge up to it. Why the source can't be read, where it can't: see
        `read_new`. `saved_steps`: of the checkpoints that are there; asked for before the first read."""
        begins = not self._has_read
        if begins:  # what there is to read may be long: what is looked for in it is better known before
            if self._cache is not None:
                self._cache.restore(self._source, self.following)
            self.following.expect(saved_steps())
        unavailable = self.read_new()
        self.following.catch_up()
        self.keep_state(at_once=begins)
        return unavailable

    def read_new(self) -> str | None:
        """Takes what is new in the source. Why it can't, where it can't: a filesystem or a Prometheus that is away, a
        log that can be read in two ways."""
        try:
            for _ in range(1 if self._has_read else 2):  # as read_all: a source may hold its newest step until then
                for n, record in enumerate(self._source.new(), 1):
                    self.history.push(record)
                    self.following.take(record)
                    if n % WHILE_READING == 0 and self._cache is not None:
                        self._cache.keep(self.following)
            self._has_read = True
        except (OSError, ScrapeError) as error:
            log.warning("the readings can't be read: %s", error)
            return UNAVAILABLE
        except ConfigError as error:
            return f"the log is not judged, the state of the run is unknown: {error}"
        return None

    def keep_state(self, *, at_once: bool = False) -> None:
        """Lets the next start go on from what was read so far, where that is worth while; see JudgeCache."""
        if self._cache is not None and self._has_read:
            self._cache.keep(self.following, at_once=at_once)
