"""Heartbeats of this process: files that a thread renews as long as the process lives, so that nobody takes the run for
gone while anything of it does. One process of each node has one in the state folder, rank 0 also one beside the
checkpoints."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sentinel.vocabulary.heartbeat import BESIDE_CHECKPOINTS, FOLDER, Heartbeat, encode_heartbeat, interval_s
from trainer_hooks.errors import Guard
from trainer_hooks.sample.process_facts import process_facts

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_AT_EXIT_S = 0.2  # how long the end of the process waits for the last record


class Attached(Protocol):
    """What a heartbeat tells of the hook."""

    @property
    def rank(self) -> int: ...

    @property
    def attempt(self) -> int: ...


class Heartbeats:
    """Of one rank. Nothing here waits for a file: each has a thread of its own, whose filesystem may hang."""

    def __init__(self, state_dir: Path, hook: Attached, world: int) -> None:
        self._hook = weakref.ref(hook)  # the heartbeat goes on after the hook's end, and must not keep the model
        self._facts: Heartbeat | None = None
        self._renewals: list[Renewal] = []
        nodes, is_one = _nodes(hook.rank, world)
        if not is_one:
            return
        facts = process_facts()
        self._facts = Heartbeat(
            rank=hook.rank,
            host=socket.gethostname(),
            interval_s=interval_s(nodes),
            state_dir=str(state_dir.absolute()),
            **{n: facts[n] for n in ("pid", "process_start_ticks", "boot_id", "pid_namespace", "job_id", "rollback")},
        )
        self._begin(state_dir, FOLDER, makes=True)

    def beside(self, checkpoints: Path) -> None:
        """Begins the one beside the checkpoints, on rank 0; later calls change nothing. The folder need not be there
        yet."""
        if self._facts is not None and self._facts.rank == 0:
            self._begin(checkpoints, BESIDE_CHECKPOINTS, makes=False)

    def close(self) -> None:
        """The training is over, and the process is not: what it still saves is seen to be its own. A renewal whose
        folder was taken away ends now."""
        for renewal in self._renewals:
            renewal.needed = False

    def _begin(self, folder: Path, name: str, *, makes: bool) -> None:
        if self._facts is None:
            return
        with _changing:
            path = folder.absolute() / name / self._facts.file_name
            if (renewal := _renewals.get(path)) is None:
                renewal = _renewals[path] = Renewal(path, makes=makes)
            renewal.renew_as(self._facts, self._hook)
            if renewal not in self._renewals:
                self._renewals.append(renewal)


class Renewal:
    """One file, and the thread that renews it until the process ends."""

    def __init__(self, path: Path, *, makes: bool) -> None:
        self._path, self._makes = path, makes
        self._facts: tuple[Heartbeat, Callable[[], Attached | None]] | None = None
        self._written: Heartbeat | None = None
        self._descriptor: int | None = None
        self._news = threading.Event()  # Something else is to be told, or the process ends
        self._ends = False
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._guard = Guard()
        self.needed = True  # Whether a training is attached

    def renew_as(self, facts: Heartbeat, hook: Callable[[], Attached | None]) -> None:
        """From now on the file says this, with the attempt of the hook as soon as that is minted."""
        self._facts, self.needed = (facts, hook), True
        self._news.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="sentinel-heartbeat", daemon=True)
            self._thread.start()
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)

    def _run(self) -> None:
        while self._facts is not None:
            told = self._told(*self._facts)
            with self._guard("renew its heartbeat"):
                self._renew(told)
            if not self.needed and self._is_gone():
                return
            soon = told.attempt is None and told.rank == 0 and self.needed
            self._news.wait(1.0 if soon else told.interval_s)
            self._news.clear()  # what has come since is read below
            if self._ends:
                with contextlib.suppress(OSError):
                    self._write(replace(told, ended=True))
                return

    def _is_gone(self) -> bool:
        """Whether the folder that the file belongs to was removed; one that can't be looked at may be there."""
        with contextlib.suppress(OSError):
            return not self._path.parent.parent.is_dir()
        return False

    def _told(self, facts: Heartbeat, hook: Callable[[], Attached | None]) -> Heartbeat:
        known = 0 if (attached := hook()) is None else attached.attempt
        return replace(facts, attempt=known or (self._written.attempt if self._written is not None else None))

    def _renew(self, told: Heartbeat) -> None:
        if told == self._written and self._is_there():
            os.utime(self._path)
            return
        if self._makes:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        elif self._path.parent.parent.is_dir():
            self._path.parent.mkdir(exist_ok=True)
        else:
            return  # nothing is saved yet
        self._write(told)

    def _is_there(self) -> bool:
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        return False

    def _write(self, told: Heartbeat) -> None:
        """Whole or not at all. The old file's lock is held until the new one's is."""
        beside = self._path.with_name(f".{self._path.name}.new")
        beside.write_text(encode_heartbeat(told), encoding="utf-8")
        descriptor = os.open(beside, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a filesystem without locks
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        beside.replace(self._path)
        before, self._descriptor, self._written = self._descriptor, descriptor, told
        if before is not None:
            os.close(before)

    def _at_exit(self) -> None:
        if os.getpid() == self._process and self._thread is not None:  # a fork's end is not the training's
            self._ends = True
            self._news.set()
            self._thread.join(_AT_EXIT_S)


_renewals: dict[Path, Renewal] = {}  # of this process: a second attach goes on with the first one's file
_changing = threading.Lock()


def _nodes(rank: int, world: int) -> tuple[int, bool]:
    """How many processes of the run have a heartbeat, and whether this one does: one of each node where the launcher
    numbers a node's ranks, else every rank."""
    local = _number(_LOCAL_RANK)
    if world == 1 or local is None:
        return world, True
    size = _number(_LOCAL_SIZE) or 1
    return -(-world // size), rank == 0 or local == 0


def _number(names: tuple[str, ...]) -> int | None:
    return next((int(text) for name in names if (text := os.environ.get(name, "")).isdecimal()), None)
