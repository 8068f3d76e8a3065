"""A run's command, started on this machine."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from sentinel.adapters.local.jobs import LocalJobs, but
from sentinel.adapters.process_states import foreign_process
from sentinel.plan.observation import JobsSeen, Life, ProcessState, WriterSeen
from sentinel.vocabulary.errors import ConfigError, JobStillAlive
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """One run's command, started on this machine, by the interface of act.neighbours.Launcher."""

    jobs: LocalJobs
    _: KW_ONLY
    command: Sequence[str]
    working_directory: Path
    log: Path
    stop_grace_s: float
    environment: Callable[[], dict[str, str]] = dict  # what the job gets beside its own, looked up at each start

    def look(self, started: Sequence[RunStarted]) -> JobsSeen:
        found = self.jobs.writers(started)
        writers = tuple(
            WriterSeen(
                id=f"process {w.pid}",
                rollback=w.rollback,
                foreign=w.not_ours or foreign_process(w.pid),
                group=w.group,
            )
            for w in found
        )
        process_states: dict[str | None, ProcessState] = {}
        if (dead := self.jobs.last_seen_dead()) is not None:
            process_states[None] = ProcessState(life=Life.GONE, sentence=f"process {dead} is not there any more")
        return JobsSeen(writers=writers, process_states=process_states, was_seen=bool(found) or self.log.exists())

    def keep(self, started: Sequence[RunStarted]) -> None:
        """Nothing: the command is in the configuration."""

    def fenced(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        if left := but(self.jobs.writers(started), except_for):
            raise JobStillAlive(", ".join(f"process {w.pid}" for w in left))

    def keep_stacks(self, folder: Path) -> None:
        program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
        for writer in self.jobs.writers() if program else ():
            if writer.not_ours is not None:
                continue
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                command = [str(program), "dump", "--pid", str(writer.pid)]
                dump = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{time.time():.0f}-{writer.pid}.txt").write_text(dump.stdout + dump.stderr, encoding="utf-8")

    def prepare(self, rollback: str | None, started: Sequence[RunStarted], overrides: Overrides | None) -> None:
        """Nothing: a command is there or it is not."""

    def preview(self, started: Sequence[RunStarted], overrides: Overrides) -> str | None:
        """None: there is no job script."""

    def start_commands(self, started: Sequence[RunStarted]) -> tuple[str, ...]:  # noqa: ARG002 - Slurm's goes by it
        if not self.command:
            return ()
        where, state_dir, log = (str(path) for path in (self.working_directory, self.jobs.state_dir, self.log))
        given = {"SENTINEL_STATE_DIR": state_dir} | self.environment()
        command = f"{' '.join(f'{k}={shlex.quote(v)}' for k, v in given.items())} {shlex.join(self.command)}"
        return (f"cd {shlex.quote(where)} && {command} >> {shlex.quote(log)} 2>&1",)

    def stop(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        self.jobs.stop(grace_s=self.stop_grace_s, also=started, except_for=except_for)

    def start(
        self,
        incident: str | None,
        rollback: str | None,
        started: Sequence[RunStarted],  # noqa: ARG002 - Slurm's launcher goes by it
        *,
        follow_up: bool,  # noqa: ARG002 - so does it by this
    ) -> None:
        if not self.command:
            raise ConfigError("[launcher] command is empty: sentinel does not know how to start the job")
        extra = {"SENTINEL_INCIDENT": incident, "SENTINEL_ROLLBACK": rollback}
        environment = {name: value for name, value in extra.items() if value} | self.environment()
        self.jobs.start(self.command, cwd=self.working_directory, extra_env=environment, log_path=self.log)
