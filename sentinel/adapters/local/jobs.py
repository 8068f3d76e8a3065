"""The run's processes on this machine: found again by looking, not by remembering."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from sentinel import bounded
from sentinel.adapters.local.family import Family, environment_of, homes_of, meets_at, parent_and_group, words_of
from sentinel.adapters.process_states import state_of_process
from sentinel.durable import os_errors_named
from sentinel.plan.observation import Life
from sentinel.processes import all_writers_of
from sentinel.vocabulary.errors import ConfigError, JobStillAlive
from sentinel.vocabulary.sample import RunStarted

_STARTED = "SENTINEL_STARTED"  # in the environment of what sentinel starts, and of all that this starts in turn
_SHOWN = 80  # characters of a command line
_DIES_AT_ONCE_S = 1.0  # a job that has ended by then has not begun: the next look finds it gone


class Writer(NamedTuple):
    """A process of the run that may write to its folders."""

    pid: int
    rollback: str | None
    """The rollback that it was started for: SENTINEL_ROLLBACK in its environment, or what its journal reports where the
    environment can't be read."""
    group: str | None = None  # the processes that were started together with it have the same
    not_ours: str | None = None  # why it is not known to be the run's own, as a sentence: it is never stopped


class LocalJobs:
    """The run's processes on this machine. One is the run's own by positive evidence alone: sentinel started it, it is
    what `[launcher] command` says, a journal of the run names it, it holds a heartbeat of the run, or writes the log
    that the run is judged by; and whatever such a process has started, or was started by for its sake alone. The state
    folder in a process's environment is none: a shell hands it on to all that is typed in it. What holds a heartbeat of
    another run is that run's."""

    def __init__(self, state_dir: Path, command: Sequence[str] = (), judged_log: Path | None = None) -> None:
        self.state_dir = str(state_dir.resolve())
        self._command = tuple(command)
        self._judged_log = judged_log
        self._children: list[subprocess.Popen[bytes]] = []
        self._last: tuple[int, ...] = ()  # processes seen last, while any was; some may be gone by now

    def start(self, command: Sequence[str], *, cwd: Path, extra_env: Mapping[str, str], log_path: Path) -> int:
        """Starts the job, detached, its output appended to the log; returns the process id. ConfigError if it can't."""
        environment = {k: v for k, v in os.environ.items() if k not in ("SENTINEL_INCIDENT", "SENTINEL_ROLLBACK")}
        environment |= {"SENTINEL_STATE_DIR": self.state_dir, _STARTED: "1", **extra_env}
        with os_errors_named(log_path):
            log_path.parent.mkdir(parents=True, exist_ok=True)
            log = bounded.append_to(log_path)
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

    def writers(self, also: Sequence[RunStarted] = ()) -> tuple[Writer, ...]:
        """The run's living processes, and those that may be, in the order of their ids. The last journal of `also`
        names a trainer that somebody else may have started: it is found whoever's it is. Other processes of other users
        are not: their environment can't be read. A zombie writes nothing once the last of its threads has ended."""
        self._bury()
        named, family = {pid: one for one in also[-1:] if (pid := _named(one)) is not None}, Family.of_all()
        found = {}
        for pid in family.parents:
            environment = {} if pid == os.getpid() else environment_of(pid)
            if environment is None:
                environment = _as_reported(named[pid]) if pid in named else {}
            theirs = environment.get("SENTINEL_STATE_DIR")
            if pid in named or (theirs and os.path.realpath(theirs) == self.state_dir):
                found[pid] = environment
        homes = {pid: homes_of(pid) for pid in found}
        carry = {pid for pid in found if not homes[pid] or self.state_dir in homes[pid]}
        ours = {pid for pid in carry if self.state_dir in homes[pid] or _STARTED in found[pid] or self._is_command(pid)}
        ours |= carry & all_writers_of(self._judged_log) if self._judged_log is not None else set()
        ours |= {pid for pid in carry & named.keys() if self._state_of(found[pid]) in (None, self.state_dir)}
        meets = {pid: meets_at(found[pid]) for pid in carry}
        ours |= {pid for pid in carry if meets[pid] and meets[pid] in {meets.get(one) for one in ours}}
        ours = family.with_kin(ours, carry)
        made = [
            Writer(
                pid,
                environment.get("SENTINEL_ROLLBACK"),
                not_ours=None if pid in ours else self._why_not(pid, environment),
            )
            for pid, environment in sorted(found.items())
            if pid in ours or pid in named or (pid in carry and not family.is_sentinels(pid))
        ]
        groups = family.groups([writer.pid for writer in made], meets)
        self._last = tuple(sorted(ours)) or self._last
        return tuple(writer._replace(group=f"with process {groups[writer.pid]}") for writer in made)

    def _is_command(self, pid: int) -> bool:
        """Whether the process is the configuration's command, by all of its words but the program's folder."""
        words = words_of(pid)
        return bool(self._command) and len(words) >= len(self._command) and _tail(words, self._command)

    def _state_of(self, environment: Mapping[str, str]) -> str | None:
        named = environment.get("SENTINEL_STATE_DIR")
        return os.path.realpath(named) if named else None

    def _why_not(self, pid: int, environment: Mapping[str, str]) -> str:
        what = f"process {pid} ({' '.join(words_of(pid))[:_SHOWN]})"
        homes, state = homes_of(pid), self._state_of(environment)
        if homes or state not in (None, self.state_dir):
            other = ", ".join(sorted(homes)) or state
            return f"{what} is named by a journal of this run, and reports to {other}: this is a copy, or the other is"
        return (
            f"{what} carries this run's SENTINEL_STATE_DIR, and nothing else says that it is the run's: it has no "
            "heartbeat, no journal names it, it does not write the run's log, and sentinel did not start it; it is not "
            "stopped, and nothing is done while it lives. Start what is not the run's without that variable"
        )

    def last_seen_dead(self) -> int | None:
        """A process of the run that this object saw, where none of those that it saw is there any more; else None."""
        return None if not self._last or any(map(_is_there, self._last)) else self._last[0]

    def stop(self, *, grace_s: float, also: Sequence[RunStarted] = (), except_for: str | None = None) -> None:
        """Asks the run's processes to end, then makes them; returns when all are seen gone but the spared rollback's.
        JobStillAlive when something outlives SIGKILL (uninterruptible sleep), or may be the run's and is not known to
        be: then nothing may be moved."""
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            found = but(self.writers(also), except_for)
            if (doubt := next((w.not_ours for w in found if w.not_ours is not None), None)) is not None:
                raise JobStillAlive(doubt)
            for whom in _whom([w.pid for w in found]):
                _signal(whom, number)
            end = time.monotonic() + patience_s
            while but(self.writers(also), except_for):
                if time.monotonic() > end:
                    break
                time.sleep(0.05)
            else:
                for child in self._children if except_for is None else ():
                    with contextlib.suppress(subprocess.TimeoutExpired):  # seen gone; the kernel may need a moment more
                        child.wait(5.0)
                self._bury()
                return
        raise JobStillAlive(", ".join(f"process {w.pid}" for w in but(self.writers(also), except_for)))

    def _bury(self) -> None:
        """Takes note of children that have ended: a zombie would look alive to others."""
        self._children = [child for child in self._children if child.poll() is None]


def _tail(words: Sequence[str], command: Sequence[str]) -> bool:
    """Whether the words end with the command; the program may be spelled with another folder."""
    tail = words[len(words) - len(command) :]
    return Path(tail[0]).name == Path(command[0]).name and tuple(tail[1:]) == tuple(command[1:])


def _named(started: RunStarted) -> int | None:
    """The process that the attempt's journal names, with its start, where it is on this machine and alive."""
    if started.process_start_unix_s is None and started.process_start_ticks is None:
        return None
    process_state = state_of_process(started)
    return (
        started.pid
        if process_state is not None and process_state.life is Life.ALIVE and started.pid != os.getpid()
        else None
    )


def _as_reported(started: RunStarted) -> dict[str, str]:
    """What the environment of a process says of its rollback, by its journal."""
    return {} if started.rollback is None else {"SENTINEL_ROLLBACK": started.rollback}


def but(writers: Sequence[Writer], except_for: str | None) -> list[Writer]:
    return [w for w in writers if except_for is None or w.rollback != except_for]


def _is_there(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _whom(pids: Sequence[int]) -> list[int]:
    """What to signal: minus the group where all of it is to end, so that none is missed; else the process alone."""
    groups = {pid: found[1] for pid in psutil.pids() if (found := parent_and_group(pid)) is not None}
    whole = {
        g for g in groups.values() if g != os.getpgrp() and all(pid in pids for pid, of in groups.items() if of == g)
    }
    return sorted({-groups[pid] if groups.get(pid) in whole else pid for pid in pids})


def _signal(whom: int, number: signal.Signals) -> None:
    try:
        os.kill(whom, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise JobStillAlive(f"process {abs(whom)} belongs to another account, which sentinel can't stop") from error
