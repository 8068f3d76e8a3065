"""The local launcher: a job is a process group of its own, found again by looking, not by remembering."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import psutil

from sentinel.adapters.witnesses import fate_of_process, foreign_process
from sentinel.durable import os_errors_named
from sentinel.plan.observation import Fate, JobsSeen, Life, WriterSeen
from sentinel.vocabulary.errors import ConfigError, JobStillAlive
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

_DIES_AT_ONCE_S = 1.0  # a job that has ended by then has not begun: the next look finds it gone


class Writer(NamedTuple):
    """A process of the run that may write to its folders."""

    pid: int
    rollback: str | None  # SENTINEL_ROLLBACK in its environment: the rollback that it was started for


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
        found = self.jobs.writers(_newest(started))
        writers = tuple(
            WriterSeen(id=f"process {w.pid}", rollback=w.rollback, foreign=foreign_process(w.pid)) for w in found
        )
        fates: dict[str | None, Fate] = {}
        if (dead := self.jobs.last_seen_dead()) is not None:
            fates[None] = Fate(life=Life.GONE, sentence=f"process {dead} is not there any more")
        return JobsSeen(writers=writers, fates=fates, was_seen=bool(found) or self.log.exists())

    def keep(self, started: Sequence[RunStarted]) -> None:
        """Nothing: the command is in the configuration."""

    def fenced(self, started: Sequence[RunStarted], spare: str | None) -> None:
        if left := _but(self.jobs.writers(_newest(started)), spare):
            raise JobStillAlive(", ".join(f"process {w.pid}" for w in left))

    def keep_stacks(self, folder: Path) -> None:
        program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
        for writer in self.jobs.writers() if program else ():
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

    def stop(self, started: Sequence[RunStarted], spare: str | None) -> None:
        self.jobs.stop(grace_s=self.stop_grace_s, also=_newest(started), spare=spare)

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


class LocalJobs:
    """Processes of this machine that carry SENTINEL_STATE_DIR, this run's state folder, in their environment."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = str(state_dir.resolve())
        self._children: list[subprocess.Popen[bytes]] = []
        self._last: tuple[int, ...] = ()  # processes seen last, while any was; some may be gone by now

    def start(self, command: Sequence[str], *, cwd: Path, extra_env: Mapping[str, str], log_path: Path) -> int:
        """Starts the job, detached, its output appended to the log; returns the process id. ConfigError if it can't."""
        environment = {k: v for k, v in os.environ.items() if k not in ("SENTINEL_INCIDENT", "SENTINEL_ROLLBACK")}
        environment |= {"SENTINEL_STATE_DIR": self.state_dir, **extra_env}
        with os_errors_named(log_path):
            log_path.parent.mkdir(parents=True, exist_ok=True)
            log = log_path.open("ab")
        try:
            with log:
                process = subprocess.Popen(
                    list(command),
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ConfigError(f"[launcher] command {command[0]!r} could not be started: {error}") from error
        self._children.append(process)
        self._last = (process.pid,)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DIES_AT_ONCE_S)
        return process.pid

    def writers(self, also: RunStarted | None = None) -> tuple[Writer, ...]:
        """The run's living processes, in the order of their ids. The journal of `also` names a trainer that somebody
        else may have started: it is found whoever's it is. Other processes of other users are not: their environment
        can't be read. A zombie writes nothing once the last of its threads has ended."""
        self._bury()
        named, found = _named(also), {}
        for pid in psutil.pids():
            environment = {} if pid == os.getpid() else _environment(pid)
            ours = environment.get("SENTINEL_STATE_DIR")
            if pid == named or (ours and os.path.realpath(ours) == self.state_dir):
                found[pid] = Writer(pid, environment.get("SENTINEL_ROLLBACK"))
        self._last = tuple(sorted(found)) or self._last
        return tuple(found[pid] for pid in sorted(found))

    def last_seen_dead(self) -> int | None:
        """A process of the run that this object saw, where none of those that it saw is there any more; else None."""
        return None if not self._last or any(map(_is_there, self._last)) else self._last[0]

    def stop(self, *, grace_s: float, also: RunStarted | None = None, spare: str | None = None) -> None:
        """Asks the run's processes to end, then makes them; returns when all are seen gone but the spared rollback's.
        JobStillAlive when something outlives SIGKILL (uninterruptible sleep): then nothing may be moved."""
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            for group in {_group(w.pid) for w in _but(self.writers(also), spare)}:
                _signal(group, number)
            end = time.monotonic() + patience_s
            while _but(self.writers(also), spare):
                if time.monotonic() > end:
                    break
                time.sleep(0.05)
            else:
                for child in self._children if spare is None else ():
                    with contextlib.suppress(subprocess.TimeoutExpired):  # seen gone; the kernel may need a moment more
                        child.wait(5.0)
                self._bury()
                return
        raise JobStillAlive(", ".join(f"process {w.pid}" for w in _but(self.writers(also), spare)))

    def _bury(self) -> None:
        """Takes note of children that have ended: a zombie would look alive to others."""
        self._children = [child for child in self._children if child.poll() is None]


def _newest(started: Sequence[RunStarted]) -> RunStarted | None:
    return started[-1] if started else None


def _named(started: RunStarted | None) -> int | None:
    """The process that the attempt's journal names, with its start, where it is on this machine and alive."""
    if started is None or (started.process_start_unix_s is None and started.process_start_ticks is None):
        return None
    fate = fate_of_process(started)
    return started.pid if fate is not None and fate.life is Life.ALIVE and started.pid != os.getpid() else None


def _but(writers: Sequence[Writer], spare: str | None) -> list[Writer]:
    return [w for w in writers if spare is None or w.rollback != spare]


def _environment(pid: int) -> dict[str, str]:
    """Sentinel's variables in the process's environment; none where it is gone, or this account may not read it. A
    process is a zombie as soon as its first thread has ended: the others show it still, and may hang in a write."""
    process = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for place in chain([process], process.glob("task/*")):
            try:
                text = (place / "environ").read_bytes().decode(errors="surrogateescape")
            except PermissionError:
                return {}
            except OSError:
                continue
            if text:
                return dict(pair.split("=", 1) for pair in text.split("\0") if pair.startswith("SENTINEL_"))
    return {}


def _is_there(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _group(pid: int) -> int:
    """What to signal for a process: minus its group, since launchers have children, unless the group is our own."""
    try:
        group = os.getpgid(pid)
    except ProcessLookupError:
        return pid
    return pid if group == os.getpgrp() else -group


def _signal(whom: int, number: signal.Signals) -> None:
    try:
        os.kill(whom, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise JobStillAlive(f"process {abs(whom)} belongs to another account, which sentinel can't stop") from error
