"""The launcher of a job that is out of sight, as from a pod: the run is watched, and nothing is done to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentinel.plan.observation import JobsSeen
from sentinel.vocabulary.errors import ConfigError, JobStillAlive
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

__all__ = ["ElsewhereLauncher"]

_WHY = "its job runs elsewhere ([launcher] kind)"


class ElsewhereLauncher:
    """Knows nothing of the job, and says so: what may be alive is alive, so nothing is ever moved."""

    def look(self, started: Sequence[RunStarted]) -> JobsSeen:  # noqa: ARG002
        """Nobody can say what runs, and nobody is expected to."""
        return JobsSeen(known=False, why_unknown=_WHY, elsewhere=True)

    def keep(self, started: Sequence[RunStarted]) -> None:
        """Nothing: it is never started from here."""

    def fenced(self, started: Sequence[RunStarted], spare: str | None) -> None:  # noqa: ARG002
        """JobStillAlive, always."""
        raise JobStillAlive(_WHY)

    def keep_stacks(self, folder: Path) -> None:
        """Nothing: its processes are not here."""

    def prepare(self, rollback: str | None, started: Sequence[RunStarted], overrides: Overrides | None) -> None:  # noqa: ARG002
        """ConfigError, always."""
        raise ConfigError(f"{_WHY}: it can't be started from here")

    def preview(self, started: Sequence[RunStarted], overrides: Overrides) -> str | None:  # noqa: ARG002
        """None: no job script is known."""
        return None

    def start_commands(self, started: Sequence[RunStarted]) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: how it is started is not known here."""
        return ()

    def stop(self, started: Sequence[RunStarted], spare: str | None) -> None:  # noqa: ARG002
        """JobStillAlive, always."""
        raise JobStillAlive(_WHY)

    def start(
        self,
        incident: str | None,  # noqa: ARG002
        rollback: str | None,  # noqa: ARG002
        started: Sequence[RunStarted],  # noqa: ARG002
        *,
        follow_up: bool,  # noqa: ARG002
    ) -> None:
        """ConfigError, always."""
        raise ConfigError(f"{_WHY}: it can't be started from here")
