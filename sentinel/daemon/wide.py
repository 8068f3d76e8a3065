"""What a process needs that watches hundreds of runs."""

from __future__ import annotations

import gc
import logging
import math
import os
import resource
from pathlib import Path

log = logging.getLogger(__name__)

_COLLECTED_AFTER = (100_000, 20, 20)
"""Thresholds of gc.set_threshold. There is little cyclic garbage, and a collection goes through the million objects
of a thousand runs: with the defaults it takes a third of the time."""


def cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPU cores that the process may use: its affinity, and a container's quota (cgroup v2), rounded up."""
    there = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text(encoding="ascii").split()
        return max(1, min(there, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such limit: the quota is "max", or another cgroup version
        return there


def collect_rarely() -> None:
    gc.set_threshold(*_COLLECTED_AFTER)


def allow_many_files() -> None:
    """Raises the limit of open files: each followed log is one, and a shell's limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # a unit that forbids the call has LimitNOFILE=
            log.warning("the limit of open files stays at %d: %s", soft, error)
