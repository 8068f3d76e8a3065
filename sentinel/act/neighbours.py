"""The adapters that a watch looks at and acts through; the interface of a launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sentinel.act.source import Source
from sentinel.act.wandb_branches import WandbBranches
from sentinel.adapters.checkpoints import Checkpoints
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.state_files import Approvals, OverridesFile
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.judge.history import History
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident
from sentinel.plan.observation import BisectSeen, JobsSeen
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted


class Launcher(Protocol):
    """How the run's job is found, stopped and started; `started` is what its attempts reported, the newest last."""

    def look(self, started: Sequence[RunStarted]) -> JobsSeen:
        """What is there of the job, now. Does not raise when nobody can say: it says so."""

    def keep(self, started: Sequence[RunStarted]) -> None:
        """Records what a later start needs and the scheduler may no longer know by then."""

    def fenced(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        """Looks afresh; JobStillAlive when anything of the job may write, but what was started for `except_for`."""

    def prepare(self, rollback: str | None, started: Sequence[RunStarted], overrides: Overrides | None) -> None:
        """Makes ready, and has checked, what `start` will submit. SlurmRefused, ScriptRefused, ConfigError."""

    def preview(self, started: Sequence[RunStarted], overrides: Overrides) -> str | None:
        """How the job script would be changed, as a diff; None where it is not. ScriptRefused, ConfigError."""

    def start_commands(self, started: Sequence[RunStarted]) -> tuple[str, ...]:
        """What a person types to start the job again, one line each; empty where that is not known."""

    def keep_stacks(self, folder: Path) -> None:
        """Writes what each of the job's processes is doing into the folder, where py-spy is there. Never raises."""

    def stop(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        """Stops all of the job but what was started for the rollback `except_for`; returns when it is seen gone.
        JobStillAlive when it is not."""

    def start(
        self, incident: str | None, rollback: str | None, started: Sequence[RunStarted], *, follow_up: bool
    ) -> None:
        """Starts the job again, or what of it is still missing. ConfigError, SlurmRefused, SlurmUnavailable."""


class CauseSearch(Protocol):
    """How the cause of a divergence is looked for beside the run, where a rung of the ladder asks for it."""

    def seen(self, incident: Incident, history: History, facts: Facts) -> BisectSeen:
        """Where the incident's search stands; over where it can't be run, or could not go on. FilesystemRefused where
        it can't be read."""

    def follow(self, incident: str) -> None:
        """One step further; of an incident that was `seen`. FilesystemRefused."""

    def stop_all(self, incidents: Sequence[Incident]) -> None:
        """Stops what still runs of the searches that were `seen` to go on: a person has decided otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The adapters that a watch looks at and acts through."""

    state_dir: Path
    source: Source
    incident_log: IncidentLog
    checkpoints: Checkpoints
    launcher: Launcher
    overrides: OverridesFile
    approvals: Approvals
    tensorboard: TensorBoard | None
    job_log: Path
    wandb: WandbBranches | None = None
    source_log: Path | None = None  # the log that the readings come from, or a pattern; None: journals

    def logs(self, jobs: JobsSeen) -> list[Path]:
        """The files, or patterns, that the run's output goes to."""
        logs = [self.job_log, *([Path(jobs.log_path)] if jobs.log_path else [])]
        return logs if self.source_log is None else [*logs, self.source_log]
