"""Processes of this machine: what names one for good (its machine, its number, when it began), and which of them write
to a file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_OWNER_WRITES = 0o200
_CLOCKS_DIFFER_S = 2.0


def machine() -> str:
    """Where a process's number means what it means here: a host's name may be many containers'."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def start_of(pid: int) -> int:
    """When the process began, clock ticks since the boot, which no clock that is set moves (man 5 proc). OSError when
    it is gone, or killed and not waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    if fields[0] in "ZX" and threads < 2:  # or one of them hangs, and may yet write
        raise ProcessLookupError(f"process {pid} is gone")
    return int(fields[19])


def lived_at(pid: int, time_unix_s: float) -> bool:
    """Whether the process is there now and was there at that time: another one may have its number since."""
    try:
        began_s = start_of(pid) / _TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return False
    booted_unix_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_unix_s + began_s <= time_unix_s + _CLOCKS_DIFFER_S


def writers_of(paths: Collection[Path]) -> dict[Path, int]:
    """Those of the files that another process of this machine has open for writing, and one such process of each. What
    processes of other accounts have open is not seen without the right to look (man 5 proc: PTRACE_MODE_READ)."""
    by_name: dict[str, list[Path]] = {}
    for path in paths:
        by_name.setdefault(path.name, []).append(path)
    found: dict[Path, int] = {}
    for pid, descriptor, name in _open_for_writing() if by_name else ():
        for path in by_name.get(name, ()):
            with contextlib.suppress(OSError):  # closed or moved meanwhile
                if path.samefile(descriptor):
                    found[path] = pid
    return found


def all_writers_of(path: Path) -> frozenset[int]:
    """All processes of this machine but this one that have the file open for writing."""
    found = set()
    for pid, descriptor, name in _open_for_writing():
        with contextlib.suppress(OSError):
            if name == path.name and path.samefile(descriptor):
                found.add(pid)
    return frozenset(found)


def _open_for_writing() -> Iterator[tuple[int, Path, str]]:
    """(process, /proc/PID/fd/N, the open file's name) of each descriptor of other processes that may be written to."""
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it ended, or is another account's
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if descriptor.lstat().st_mode & _OWNER_WRITES:
                        yield int(process.name), descriptor, descriptor.readlink().name
