"""The launcher of a job that is out of sight, as from a pod: the run is watched, and nothing is done to it."""
# ruff: noqa: ARG002 - the interface is act.neighbours.Launcher's

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentinel.plan.observation import JobsSeen
from sentinel.vocabulary.errors import ConfigError, JobStillAlive
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

_WHY = "its job runs elsewhere ([launcher] kind)"


class ElsewhereLauncher:
    """Knows nothing of the job, and says so: what may be alive counts as alive, so nothing is ever moved."""

    def look(self, started: Sequence[RunStarted]) -> JobsSeen:
        return JobsSeen(known=False, why_unknown=_WHY, elsewhere=True)

    def keep(self, started: Sequence[RunStarted]) -> None:
        """Nothing: it is never started from here."""

    def fenced(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        raise JobStillAlive(_WHY)

    stop = fenced

    def keep_stacks(self, folder: Path) -> None:
        """Nothing: its processes are not here."""

    def prepare(self, rollback: str | None, started: Sequence[RunStarted], overrides: Overrides | None) -> None:
        raise ConfigError(f"{_WHY}: it can't be started from here")

    def preview(self, started: Sequence[RunStarted], overrides: Overrides) -> str | None:
        return None

    def start_commands(self, started: Sequence[RunStarted]) -> tuple[str, ...]:
        return ()

    def start(
        self, incident: str | None, rollback: str | None, started: Sequence[RunStarted], *, follow_up: bool
    ) -> None:
        self.prepare(rollback, started, None)
