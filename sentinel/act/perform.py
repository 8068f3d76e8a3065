"""Does one action through the adapters, and returns when its effect has been seen."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from sentinel.act.observe import Neighbours, Observer
from sentinel.plan.actions import (
    Action,
    CutTensorBoard,
    PointLatest,
    QuarantineCheckpoints,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
)
from sentinel.vocabulary.errors import ConfigError

__all__ = ["Performer"]


class Performer:
    """The hands of a watch; `__call__` is a `Perform`."""

    def __init__(
        self,
        neighbours: Neighbours,
        observer: Observer,
        *,
        command: tuple[str, ...],
        working_directory: Path,
        stop_grace_s: float,
    ) -> None:
        self._near = neighbours
        self._observer = observer
        self._command = command
        self._working_directory = working_directory
        self._stop_grace_s = stop_grace_s

    def __call__(self, action: Action) -> None:
        near = self._near
        match action:
            case VerifyCheckpoint(tag):
                self._observer.verified(near.checkpoints.verify(tag))
            case StopJob():
                near.jobs.stop(grace_s=self._stop_grace_s, also=self._observer.hand_started)
            case QuarantineCheckpoints(tags, incident, rollback):
                near.checkpoints.quarantine(tags, incident=incident, rollback=rollback)
                self._observer.forget(tags)
            case PointLatest(tag, global_step, incident, rollback):
                near.checkpoints.point_latest(tag, global_step, incident=incident, rollback=rollback)
            case CutTensorBoard(at, incident, rollback):
                if near.tensorboard is not None:
                    near.tensorboard.cut(at, incident=incident, rollback=rollback)
            case WriteOverrides(overrides):
                near.overrides.write(overrides)
            case StartJob(incident, rollback):
                self._start(incident, rollback)
            case _:
                assert_never(action)

    def _start(self, incident: str | None, rollback: str | None) -> None:
        if not self._command:
            raise ConfigError("[launcher] command is empty: sentinel does not know how to start the job")
        extra = {"SENTINEL_INCIDENT": incident, "SENTINEL_ROLLBACK": rollback}
        self._near.jobs.start(
            self._command,
            cwd=self._working_directory,
            extra_env={name: value for name, value in extra.items() if value},
            log_path=self._near.job_log,
        )
