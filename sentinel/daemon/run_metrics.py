"""One run's metrics at the daemon's /metrics and in its textfile: of its last look, and of the daemon's turns."""

from __future__ import annotations

import logging
import math
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from sentinel.act.observation import Observation
from sentinel.act.watch import Watch
from sentinel.adapters.exposition.exposition import Textfile
from sentinel.adapters.exposition.text import RunText, RunWriter
from sentinel.config import Config
from sentinel.daemon.run_series import ActionCounts, Turns, exposed, of_daemon
from sentinel.judge.history import LAST_SAMPLES
from sentinel.judge.readings import BANDED
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.policy import Mode
from sentinel.plan.outcome import Outcome
from sentinel.vocabulary.sample import Sample

if TYPE_CHECKING:
    from sentinel.judge.analysis.correlation.table import Correlation

log = logging.getLogger(__name__)

_VERSION = version("training-sentinel")
_LEAST_SAMPLES = 64
_INTERVAL_S = 60.0  # a correlation of 512 samples takes 50 ms of a core
_CORRELATED = (VerdictKind.SPIKE, VerdictKind.DIVERGED)


class Shows(Protocol):
    """Where the metrics of a run are shown: /metrics of this process, or of the one that it works for."""

    def open(self) -> None:
        """From the first run on whose lock is held."""

    def show(self, run: str, text: RunText) -> None: ...

    def withdraw(self, run: str) -> None: ...

    def close(self, *, well: bool) -> None: ...


class RunMetrics:
    """Lives while the watch has the run's lock. An error here may cost a scrape, never a turn."""

    def __init__(self, config: Config, exposition: Shows, *, observe: bool, once: bool) -> None:
        self._observe = observe
        self._once = once
        self._config = config
        self._exposition = exposition
        self._turns = Turns()
        self._correlated = Correlated()
        self._actions = ActionCounts(config.run.name)
        self._writer = RunWriter()
        self._well = True
        self._textfile = _textfile(config)
        exposition.open()
        self._show(None)

    def close(self, *, well: bool) -> bool:
        """Withdraws the metrics where the watch ended as it should, and returns whether it did. Else they stay and grow
        stale, so that the alert for a missing watch fires."""
        if not (well and self._well):
            return False
        self._exposition.withdraw(self._config.run.name)
        if self._textfile is not None and not self._once:  # with --once the file stays until the next look
            self._textfile.remove()
        return True

    def reload(self, config: Config) -> None:
        """Applies the configuration that was read again."""
        before, self._config = self._config, config
        if config.metrics.textfile != before.metrics.textfile:
            if self._textfile is not None:
                self._textfile.remove()
            self._textfile = _textfile(config)
            self._show(None)

    def turn(self, watching: Watch, done: Outcome | None, *, took_s: float, late_s: float, failed: bool) -> None:
        look = watching.last
        self._well = done in (None, Outcome.FINISHED)
        look_unix_s = look.facts.now_unix_s if look else None
        self._turns = self._turns.with_turn(took_s=took_s, late_s=late_s, failed=failed, look_unix_s=look_unix_s)
        try:
            self._show(look)
        except Exception:  # at the loop's edge: metrics must not cost a turn
            log.exception("can't update /metrics")

    def _show(self, look: Observation | None) -> None:
        config, run = self._config, self._config.run.name
        mode: Mode = "observe" if self._observe else config.policy.mode
        seen = () if look is None else exposed(run, look, config.policy, self._correlated.of(look))
        pace_s = config.watch.poll_interval_s
        of_turns = of_daemon(run, self._turns, mode=mode, poll_interval_s=pace_s, version=_VERSION)
        actions = () if look is None else self._actions.of(look.events)
        text = self._writer.write((*seen, *of_turns), actions)
        self._exposition.show(run, text)
        if self._textfile is not None:
            self._textfile.write(text)


def _textfile(config: Config) -> Textfile | None:
    path = config.metrics.textfile
    return None if path is None else Textfile(path)


def leads(samples: list[Sample]) -> tuple[Correlation, ...]:
    """The strongest correlation of each signal that may lead; none for fewer than 64 samples."""
    if len(samples) < _LEAST_SAMPLES:
        return ()
    from sentinel.judge.analysis.correlation.columns import correlate  # only then: a healthy run needs no scipy

    best = {p.signal: p.row(p.best) for p in correlate(samples).profiles if p.best is not None}
    return tuple(best[signal] for signal in BANDED if signal in best and math.isfinite(best[signal].pearson_r))


class Correlated:
    """Computes `leads` of the last 512 samples, once a minute at most, and keeps the last result."""

    def __init__(self) -> None:
        self._last: tuple[Correlation, ...] = ()
        self._since: tuple[int, float] | None = None

    def of(self, look: Observation) -> tuple[Correlation, ...]:
        """Correlations of the newest attempt; none while the verdict is neither spike nor diverged."""
        attempt, now_unix_s = look.history.latest, look.facts.now_unix_s
        if attempt is None or look.verdict.kind not in _CORRELATED:
            self._last, self._since = (), None
            return ()
        if self._since is None or self._since[0] != attempt.number or now_unix_s - self._since[1] >= _INTERVAL_S:
            self._last = leads(attempt.samples[-LAST_SAMPLES:])
            if len(attempt.samples) >= _LEAST_SAMPLES:  # fewer samples: try again at the next turn
                self._since = (attempt.number, now_unix_s)
        return self._last
