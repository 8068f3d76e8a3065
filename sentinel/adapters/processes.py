"""What became of the process that an attempt names: it is seen alive or dead on its own machine, or can't be seen."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

import psutil

from sentinel.plan.observation import Fate, Life
from sentinel.vocabulary.sample import RunStarted

__all__ = ["elsewhere", "fate_of_process", "foreign_process", "is_started", "start_unix_s"]

_SAME_START_S = 2.0
"""Two clocks' readings of one process's start differ by less than this."""

_PIDS_END = 1 << 31


def fate_of_process(started: RunStarted) -> Fate | None:
    """Whether rank 0's process lives; None where the attempt does not name one."""
    if started.host is None or started.pid is None or not 0 < started.pid < _PIDS_END:
        return None
    named = f"process {started.pid} of attempt {started.attempt} on {started.host}"
    if (why := elsewhere(started)) is not None:
        return Fate(life=Life.UNKNOWN, sentence=f"{named} can't be seen: {why}")
    certain = started.boot_id is not None
    try:
        os.kill(started.pid, 0)
    except ProcessLookupError:
        return Fate(life=Life.GONE, sentence=f"{named} is not there any more", certain=certain)
    except PermissionError:
        pass  # another account's, and it is there
    try:
        process = psutil.Process(started.pid)
        if not is_started(process, started):
            again = f"{named} is not there any more; its number is another process's"
            return Fate(life=Life.GONE, sentence=again, certain=certain and started.process_start_ticks is not None)
        if _is_dead(process):
            return Fate(life=Life.GONE, sentence=f"{named} is a zombie", certain=certain)
    except (psutil.Error, OSError):  # /proc hides the processes of other accounts
        hidden = f"{named} may be alive: a process of that number is there, and this account can't see whose"
        return Fate(life=Life.UNKNOWN, sentence=hidden)
    return Fate(life=Life.ALIVE, sentence=f"{named} is alive")


def elsewhere(started: RunStarted) -> str | None:
    """Why this process can't see the attempt's, as a sentence; None where it can."""
    here = socket.gethostname()
    if started.host is not None and _first(started.host) != _first(here):
        return f"this is host {here}"
    if started.boot_id is not None and started.boot_id != _boot_id():
        return f"{here} was booted since, or is another machine of that name"
    if started.pid_namespace is not None and started.pid_namespace != _pid_namespace():
        return "it is in another pid namespace, as in a container"
    return None


def foreign_process(pid: int) -> str | None:
    """Whose process it is, where it is not of the account that sentinel runs as."""
    try:
        owner = psutil.Process(pid).uids().effective
    except psutil.Error:
        return None
    if owner == os.geteuid():
        return None
    theirs, mine = _name(owner), _name(os.geteuid())
    return f"process {pid} belongs to {theirs}, and sentinel runs as {mine}: run sentinel as {theirs}"


def is_started(process: psutil.Process, started: RunStarted) -> bool:
    """Whether the process is the one that the attempt names, and not a later one of the same number."""
    if started.process_start_ticks is not None and started.boot_id == _boot_id():
        stat = Path(f"/proc/{process.pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[19]) == started.process_start_ticks
    if started.process_start_unix_s is None:
        return True
    return abs(process.create_time() - started.process_start_unix_s) < _SAME_START_S


def start_unix_s(started: RunStarted) -> float | None:
    """When the attempt's process began, by this machine's clock as it is set now."""
    if started.process_start_ticks is not None and started.boot_id == _boot_id():
        return psutil.boot_time() + started.process_start_ticks / os.sysconf("SC_CLK_TCK")
    return started.process_start_unix_s


def _is_dead(process: psutil.Process) -> bool:
    """A process is a zombie as soon as its first thread has ended; the others may hang in a write for minutes."""
    if process.status() != psutil.STATUS_ZOMBIE:
        return False
    try:
        return len(list(Path(f"/proc/{process.pid}/task").iterdir())) <= 1
    except OSError:
        return True


def _first(host: str) -> str:
    return host.partition(".")[0].lower()


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - what it leads to is no path
    except OSError:
        return None


def _name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
