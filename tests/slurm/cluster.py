"""A real Slurm on loopback, for the tests alone: its own munge key, folders and ports; without systemd."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scontrol", "scancel")

START_SOON = "StartTime=now+2"
"""For a job that was requeued, so that it need not wait until its old credential is over: Slurm counts in whole
seconds, and a node refuses what it is handed in the second in which it was told to end the job."""

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={base}/munge.socket,cred_expire=5
SlurmctldPort={port}
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.%n.log
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=100000
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MinJobAge=300
EnforcePartLimits=ALL
KillWait=30
CompleteWait=0
InactiveLimit=0
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
"""


def missing() -> str | None:
    """Why no cluster can be brought up here; None when one can."""
    absent = [name for name in NEEDED if _program(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (apt-get install slurmctld slurmd slurm-client munge)"
    if os.getuid() != 0:
        return "slurmd starts jobs for others, which needs root"
    host = socket.gethostname().partition(".")[0]
    try:
        socket.gethostbyname(host)
    except OSError:
        return f"this machine's own name, {host}, does not resolve"
    return None


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Cluster:
    """One cluster under `base`: a controller and nodes of four CPUs each, all on this machine."""

    base: Path
    nodes: int = 2
    port: int = 0

    def up(self) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        self.base.chmod(0o755)
        (self.base / "state").mkdir(exist_ok=True)
        self.port = _free_ports(self.nodes + 1)
        self._write_conf()
        key = self.base / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key-file": key, "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        options = [f"--{name}={self.base / path}" for name, path in files.items()]
        self._start("munged", "--force", *options, f"--seed-file={self.base / 'munged.seed'}")
        self.start_controller()
        for node in self.names:
            self.start_node(node)
        until(self.is_idle)

    def is_idle(self) -> bool:
        """Whether every node waits for a job."""
        shown = ("sinfo", "-h", "-N", "-p", "debug", "-t", "idle", "-o", "%N")
        return self.slurm(*shown, expect=None).split() == self.names

    def down(self) -> None:
        for name in ("slurmctld", *(f"slurmd.{node}" for node in self.names), "munged"):
            self._stop(name)
        for process in _steps_of(self.base):
            os.kill(process, signal.SIGKILL)

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.base / "slurm.conf")}

    def start_controller(self) -> None:
        self._start("slurmctld")
        until(lambda: "UP" in self.slurm("scontrol", "ping", expect=None))

    def stop_controller(self) -> None:
        """As for an upgrade: it writes its state first."""
        self._stop("slurmctld")

    def start_node(self, node: str) -> None:
        (self.base / f"spool.{node}").mkdir(exist_ok=True)
        self._start("slurmd", "-N", node)

    def slurm(self, *command: str, cwd: Path | None = None, expect: int | None = 0) -> str:
        """Runs one of Slurm's commands; returns what it prints."""
        environment = {**os.environ, **self.environment}
        ran = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
        assert expect is None or ran.returncode == expect, f"{command}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout.strip()

    def jobs(self, form: str = "%i %T", *more: str) -> list[str]:
        """What squeue shows, oldest first: job 100 comes after job 99."""
        return sorted(self.slurm("squeue", "-h", "-a", "-o", form, *more).splitlines(), key=_by_numbers)

    def _write_conf(self) -> None:
        host = socket.gethostname().partition(".")[0]
        text = _CONF.format(host=host, user="root", base=self.base, port=self.port)
        for number, node in enumerate(self.names, 1):
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={self.port + number} "
            text += "CPUs=4 RealMemory=2000 State=UNKNOWN\n"
        text += "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO\n"
        text += "PartitionName=small Nodes=n1 MaxTime=60 State=UP OverSubscribe=NO\n"
        (self.base / "slurm.conf").write_text(text)

    def _start(self, program: str, *arguments: str) -> None:
        command = [str(_program(program)), *arguments]
        environment = {**os.environ, **self.environment}
        started = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert started.returncode == 0, f"{program}: {started.stderr}"

    def _stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        try:
            pid = int((self.base / f"{name}.pid").read_text())
            os.kill(pid, number)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return
        until(lambda: not _lives(pid))


def until(true: Callable[[], object], *, within_s: float = 120, every_s: float = 0.1) -> None:
    """Returns when it is true. So long only a machine takes on which nothing goes on any more."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(every_s)


def _by_numbers(line: str) -> list[str | int]:
    """The line's words and numbers in turn, so that a number is compared as one."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", line)]


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _steps_of(base: Path) -> list[int]:
    """Daemons and steps that still belong to this cluster."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (process / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if words.startswith("slurmstepd") and str(base) in environment:
                found.append(int(process.name))
    return found


def _free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody has, nor is given before they are bound.

    The kernel's own, for who asks for any, lie above; another cluster that begins at this moment takes others.
    """
    for first in random.SystemRandom().sample(range(21_000, 32_000, 50), 220):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("", port))
            return first
    raise AssertionError("no free ports")
