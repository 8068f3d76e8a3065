"""One run's metrics at the daemon's /metrics and in its textfile, updated after each turn."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.metadata import version

from sentinel.act.watch import Watch
from sentinel.adapters.exposition.collector import Textfile
from sentinel.adapters.exposition.exposition import Exposition
from sentinel.config import Config
from sentinel.daemon.correlated import Correlated
from sentinel.daemon.watch_metrics import Turns, exposed, of_daemon
from sentinel.plan.look import Outcome
from sentinel.plan.policy import Policy

__all__ = ["RunMetrics"]

log = logging.getLogger(__name__)

_VERSION = version("training-sentinel")


class RunMetrics:
    """Lives while the watch has the run's lock. An error here may cost a scrape, never a turn."""

    def __init__(self, config: Config, exposition: Exposition, *, observe: bool, once: bool) -> None:
        self._observe = observe
        self._once = once
        self._config = config
        self._exposition = exposition
        self._turns = Turns()
        self._correlated = Correlated()
        self._well = True
        self._textfile = self._file()
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
            self._textfile = self._file()
            self._show(None)

    def turn(self, watching: Watch, done: Outcome | None, *, took_s: float, late_s: float, failed: bool) -> None:
        """Updates the metrics with the turn's look and its cost."""
        look = watching.last
        self._well = done in (None, Outcome.FINISHED)
        self._turns = self._turns.with_turn(
            took_s=took_s, late_s=late_s, failed=failed, look_unix_s=look.run.now_unix_s if look else None
        )
        try:
            self._show(watching)
        except Exception:  # at the loop's edge: metrics must not cost a turn
            log.exception("can't update /metrics")

    def _show(self, watching: Watch | None) -> None:
        run, policy, look = self._config.run.name, self._policy, watching.last if watching else None
        pace = self._config.watch.poll_interval_s
        ours = of_daemon(run, self._turns, mode=policy.mode, poll_interval_s=pace, version=_VERSION)
        seen = () if look is None else exposed(run, look, policy, self._correlated.of(look))
        shown = (*seen, *ours)
        self._exposition.show(run, shown)
        if self._textfile is not None:
            self._textfile.write(shown)

    @property
    def _policy(self) -> Policy:
        policy = self._config.policy
        return replace(policy, mode="observe") if self._observe else policy

    def _file(self) -> Textfile | None:
        path = self._config.metrics.textfile
        return None if path is None else Textfile(path)
