"""Where the runs of one daemon get their readings: those that ask the same Prometheus ask together."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from sentinel.act.source import Source
from sentinel.adapters.prometheus.api import Api, Door
from sentinel.adapters.prometheus.source import ScrapedRuns
from sentinel.config import Config
from sentinel.daemon.readings import door_of
from sentinel.daemon.wiring import clock, source_of

__all__ = ["SharedSources"]

_LONGEST_POLL_S = 2.0
"""What a run that catches up may take of a turn: others wait for the thread."""


class SharedSources:
    """One daemon's sources, by configuration and state folder. A run that is asked for again begins anew."""

    def __init__(self) -> None:
        self._scraped: dict[tuple[Door, str | None], ScrapedRuns] = {}
        self._one_at_a_time = Lock()

    def __call__(self, config: Config, state_dir: Path) -> Source:
        """The run's source."""
        of = config.source
        if of.kind != "prometheus":
            return source_of(config, state_dir)
        door = door_of(config)
        with self._one_at_a_time:
            runs = self._scraped.get((door, of.selector))
            if runs is None:
                runs = ScrapedRuns(Api(door), selector=of.selector, longest_poll_s=_LONGEST_POLL_S, now=clock)
                self._scraped[door, of.selector] = runs
        return runs.run(config.run.name, of.lookback_s)
