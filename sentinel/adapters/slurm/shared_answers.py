"""Answers of squeue that the worker processes of one daemon share: whoever needs one first asks, the others read it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.slurm.jobs import SlurmJob
from sentinel.durable import write_atomically
from sentinel.vocabulary.errors import SentinelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one query has brought. Of a query without an answer `why` says what was asked, and why there was none."""

    jobs: tuple[SlurmJob, ...]
    began_s: float  # when it was asked, by the monotonic clock, which all processes of a machine share
    failures: int = 0  # queries without an answer, one after the other, this one included
    why: tuple[str, str] | None = None


class SharedAnswers:
    """One file for each account in a folder of the daemon's own, which no other account can enter. The kernel lets a
    lock go when its process ends, so that a worker that dies while it asks holds nobody up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def asking(self, user: str, *, waits: bool) -> Iterator[bool]:
        """Whether this process is the one that may ask now; without `waits` False where another one is asking."""
        descriptor = os.open(self._folder / f"{_name(user)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def read(self, user: str, *, after_s: float) -> Answered | None:
        """The last answer, where it was asked for after that time; None for none, and for one that can't be read."""
        with suppress(OSError, SentinelError, ValueError, TypeError, LookupError):
            told = json.loads(bounded.read_text(self._path(user)))
            if float(told["began_s"]) > after_s:
                return Answered(
                    jobs=tuple(SlurmJob(**job) for job in told["jobs"]),
                    began_s=float(told["began_s"]),
                    failures=int(told["failures"]),
                    why=None if told["why"] is None else (str(told["why"][0]), str(told["why"][1])),
                )
        return None

    def write(self, user: str, answered: Answered) -> None:
        """Best effort: without it the next worker asks for itself."""
        with suppress(OSError, SentinelError):
            write_atomically(self._path(user), json.dumps(asdict(answered)))

    def _path(self, user: str) -> Path:
        return self._folder / f"{_name(user)}.json"


def _name(user: str) -> str:
    return user.encode().hex()
