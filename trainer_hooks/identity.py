"""Who this process is: its job, its machine, its hook's version."""

from __future__ import annotations

import os
import socket
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch.distributed as dist

__all__ = ["job_id", "process_facts"]


def process_facts() -> dict[str, Any]:
    """The fields of RunStarted that this process, its machine and its job can tell."""
    return {
        "time_unix_s": time.time(),
        "hook_version": _hook_version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start_unix_s": _process_start_unix_s(),
        "job_id": job_id(),
        "rollback": os.environ.get("SENTINEL_ROLLBACK"),
        "restart_count": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        "world_size": dist.get_world_size() if dist.is_initialized() else 1,
    }


def _hook_version() -> str | None:
    """Of the distribution that the hook came from; None from a checkout."""
    try:
        return version("training-sentinel")
    except PackageNotFoundError:
        return None


def job_id() -> str | None:
    """Slurm's id of the job, as squeue shows it: `7_2` for a task of an array, whose own id would hide the array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def _process_start_unix_s() -> float:
    """When this process was started, Unix seconds, from /proc: with the pid it names the process for good."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(
        int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
    )
    return boot + ticks / os.sysconf("SC_CLK_TCK")
