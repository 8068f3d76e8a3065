"""Who this process is: its job, its machine, its hook's version."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch.distributed as dist


def process_facts() -> dict[str, Any]:
    """The fields of RunStarted that this process, its machine and its job can tell."""
    stat, lines = Path("/proc/self/stat").read_text(), Path("/proc/stat").read_text().splitlines()
    ticks = int(stat.rpartition(")")[2].split()[19])
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    return {
        "time_unix_s": time.time(),
        "hook_version": _or_none(lambda: version("training-sentinel")),  # None from a checkout
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start_unix_s": boot + ticks / os.sysconf("SC_CLK_TCK"),  # with the pid it names the process for good
        "process_start_ticks": ticks,  # from the machine's boot on: no change of the clock moves them
        "boot_id": _or_none(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip()),
        "pid_namespace": _or_none(lambda: os.readlink("/proc/self/ns/pid")),  # noqa: PTH115 - what it leads to is no path
        "job_id": job_id(),
        "rollback": os.environ.get("SENTINEL_ROLLBACK") or None,
        "restart_count": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        "world_size": dist.get_world_size() if dist.is_initialized() else 1,
    }


def job_id() -> str | None:
    """Slurm's id of the job, as squeue shows it: `7_2` for a task of an array, whose own id would hide the array. Of
    another scheduler what SENTINEL_JOB says: the name that sentinel gave to it, or that the job script gives."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or os.environ.get("SENTINEL_JOB")


def _or_none(read: Callable[[], str]) -> str | None:
    try:
        return read() or None
    except (OSError, PackageNotFoundError):
        return None
