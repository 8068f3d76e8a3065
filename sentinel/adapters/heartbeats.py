"""Which heartbeats of a run are alive: those in its state folder and, of any trainer, those beside its checkpoints."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.process_states import state_of_process
from sentinel.plan.observation import HeartbeatSeen, Life
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.heartbeat import MISSED, Heartbeat, decode_heartbeat
from sentinel.vocabulary.sample import RunStarted

_LONG_GONE_S = 3600.0  # an age from which a poll asks no more; what acts does
_MOST_NAMED = 16  # heartbeats that are handed on: one is enough to keep sentinel from acting
_UNREADABLE_S = 60.0  # the interval of a heartbeat that holds none
_LONGEST_S = 3600.0  # an interval that a heartbeat may name
_FLOCK = "hhqqi4x"  # struct flock: l_type, l_whence, l_start, l_len, l_pid

Age = Callable[[Path, os.stat_result, float], float]  # (file, its facts, seconds from which its age decides) -> s


class Heartbeats:
    """Remembers which have ended for good: a process that has said so, or that is seen dead on its own machine."""

    def __init__(self, folders: Sequence[Path], age_s: Age) -> None:
        self._folders = folders
        self._age_s = age_s
        self._over: set[Path] = set()
        self._long_gone: set[Path] = set()

    def living(self, *, fresh: bool, most: int | None = _MOST_NAMED) -> tuple[HeartbeatSeen, ...]:
        """Those that are renewed, or whose lock is held; `most` of them, None for all. OSError where a folder that is
        there can't be read: then what lives is not known. `fresh`: also those that expired long ago are asked."""
        found: list[HeartbeatSeen] = []
        for path in self._paths():
            if path in self._over or (path in self._long_gone and not fresh):
                continue
            if (seen := self._seen(path)) is not None:
                found.append(seen)
                if len(found) == most:
                    break
        return tuple(found)

    def _paths(self) -> Iterator[Path]:
        for folder in self._folders:
            with suppress(FileNotFoundError, NotADirectoryError):
                yield from sorted(path for path in folder.iterdir() if path.name[0] != ".")

    def _seen(self, path: Path) -> HeartbeatSeen | None:
        """None where it is over, or expired. Opened to be looked at: so a file server is asked afresh."""
        try:
            with bounded.open_regular(path) as file:
                found, text = os.fstat(file.fileno()), file.read(bounded.SECRET_BYTES)
                locked = _is_locked(file.fileno())
        except (FileNotFoundError, bounded.UnfitFileError):
            return None
        try:
            told: Heartbeat | None = decode_heartbeat(text.decode("utf-8", "replace"))
        except LineError:
            told = None
        if told is not None and not locked and (told.ended or _is_dead(told)):
            self._over.add(path)
            return None
        expires_s = MISSED * (_UNREADABLE_S if told is None else min(told.interval_s, _LONGEST_S))
        age_s = self._age_s(path, found, expires_s)
        self._long_gone.discard(path)
        if not locked and age_s >= expires_s:
            if age_s >= max(_LONG_GONE_S, expires_s):
                self._long_gone.add(path)
            return None
        return HeartbeatSeen(
            what=str(path) if told is None else _named(told),
            age_s=age_s,
            expires_s=expires_s,
            locked=locked,
            rollback=None if told is None else told.rollback,
            rank=None if told is None else told.rank,
            process=None if told is None else process_name(told),
            job_id=None if told is None else told.job_id,
        )


def process_name(told: Heartbeat | RunStarted) -> str | None:
    """Host, boot, number and start of the process, as one name that no other process ever has; None where one of them
    is not told."""
    parts = (told.host, told.boot_id, told.pid, told.process_start_ticks)
    return None if any(part is None for part in parts) else " ".join(map(str, parts))


def _named(told: Heartbeat) -> str:
    of = f"rank {told.rank}" if told.attempt is None else f"rank {told.rank} of attempt {told.attempt}"
    job = f", job {told.job_id}" if told.job_id else ""
    return f"{of} (process {told.pid} on {told.host}{job}; state folder {told.state_dir})"


def _is_dead(told: Heartbeat) -> bool:
    """Whether its process is certainly not there any more, where this machine can tell."""
    started = RunStarted(
        attempt=told.attempt or 0,
        time_unix_s=0.0,
        host=told.host,
        pid=told.pid,
        process_start_ticks=told.process_start_ticks,
        boot_id=told.boot_id,
        pid_namespace=told.pid_namespace,
    )
    process_state = state_of_process(started)
    return process_state is not None and process_state.life is Life.GONE and process_state.certain


def _is_locked(descriptor: int) -> bool:
    """Whether another process holds a lock on it. Takes none. False where the filesystem has no locks."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    except OSError:
        return False
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
