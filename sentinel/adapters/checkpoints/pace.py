"""How fast checkpoints are read: on how many cores, and in the background at how many bytes per second."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of cgroup v2: "QUOTA PERIOD" in µs, or "max PERIOD"
_NICE = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the system call's number in Linux
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13  # of <linux/ioprio.h>: one thread; when nobody else reads or writes


class ReadingStoppedError(Exception):
    """A reading in the background was told to stop: nothing is known of what it had not read."""


class Pace:
    """One background reading's limit. `wait` is called with each piece that was read; one thread calls it."""

    def __init__(
        self,
        bytes_per_s: float,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """stop: once it is set, the reading ends at the next piece (of a mebibyte at most), also in the middle of a
        pause."""
        self._bytes_per_s, self._stop, self._clock = bytes_per_s, stop, clock
        self._next_s = clock()

    def wait(self, count: int) -> None:
        """Returns once so many more bytes fit the limit. What a pause came too late is made up for by no burst.
        ReadingStoppedError."""
        now_s = self._clock()
        self._next_s = max(self._next_s, now_s) + count / self._bytes_per_s
        if self._stop.wait(self._next_s - now_s):
            raise ReadingStoppedError


def lower_priority() -> None:
    """Makes the calling thread, and no other of the process, yield CPU and disk to everything else."""
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, _NICE)
        if (number := _IOPRIO_SET.get(platform.machine())) is not None:
            ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, thread, _IOPRIO_IDLE)


def allowed_cores(asked_of_slurm: str | None = None, quota: Path = _QUOTA) -> int:
    """How many cores this process may use, at least 1: those of its affinity mask, no more than a container's CPU limit
    (rounded up), and no more than SLURM_CPUS_PER_TASK, for a Slurm that lets a job see all cores of its node."""
    limits = [len(os.sched_getaffinity(0))]
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "") if asked_of_slurm is None else asked_of_slurm
    if asked.isdigit():
        limits.append(int(asked))
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or "max"
        used_us, period_us = quota.read_text(encoding="ascii").split()
        limits.append(math.ceil(int(used_us) / int(period_us)))
    return max(1, min(limits))
