"""One sentinel per run: a lock that is made by link(), and left behind only by the dead."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Thread
from types import TracebackType
from typing import Any, Self

from sentinel import bounded
from sentinel.durable import os_errors_named
from sentinel.processes import machine, start_of
from sentinel.vocabulary.errors import LineError, LockHeld, SentinelError
from sentinel.vocabulary.numbers import dump_json, load_object

_RENEW_S = 30.0  # between two renewals, a quarter of a lease: three may be lost


class RunLock:
    """STATE_DIR/lock, held while the context lasts. LockHeld says who holds it.

    A lock of this machine (one boot, one PID namespace) is stale when its process is gone, whatever the clock was set
    to since; any other when it was not renewed for `lease_s`, by `renew` or in STATE_DIR/lock.lives: there a process
    that lives says so, however long it is busy with one action. Who comes back from a filesystem that hung asks by
    `renew` before it acts. (The lock's own age tells a probe since when no turn was made.)
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        lease_s: float = 120.0,
        does: str = "watches this run",
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = state_dir / "lock"
        self._lives_path = state_dir / "lock.lives"
        self._lease_s = lease_s
        self._at_end = at_end  # called before it is free for another
        self._does = does  # in the sentence that tells others who holds it
        self._token = uuid.uuid4().hex
        self._now_there_unix_s = 0.0  # by the clock of the filesystem, when it was taken

    def __enter__(self) -> Self:
        with os_errors_named(self._path):
            self._take()
        with contextlib.suppress(OSError):  # the lock is ours; who comes next can sweep as well
            self._sweep()
        _renewals.begin(self)
        return self

    def _take(self) -> None:
        mine = self._path.with_name(f".lock.{self._token}")
        me = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid(), "start": start_of(os.getpid())}
        facts = {**me, "token": self._token}
        try:
            mine.write_text(dump_json(facts), encoding="utf-8")
            self._now_there_unix_s = mine.stat().st_mtime
            for _ in range(3):
                try:
                    os.link(mine, self._path)
                except FileExistsError:
                    self._take_away_stale(self._now_there_unix_s)
                else:
                    return
            raise LockHeld("it changes hands faster than it can be taken", self._does)
        finally:
            with contextlib.suppress(OSError):
                mine.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._at_end()
        _renewals.end(self)
        with contextlib.suppress(OSError):  # what stays is a dead process's lock: the next one takes it over
            if self._holder().get("token") == self._token:
                self._lives_path.unlink(missing_ok=True)
                self._path.unlink(missing_ok=True)

    def renew(self) -> None:
        """Says that the holder goes on. LockHeld when another has taken the lock over: then nothing may be done."""
        with os_errors_named(self._path):
            self._ask()
            os.utime(self._path)

    def lives(self) -> None:
        """Says that the holder's process lives, and no more. LockHeld as of `renew`."""
        with os_errors_named(self._lives_path):
            self._ask()
            self._lives_path.touch()

    def _ask(self) -> None:
        holder = self._holder()
        if not holder:
            raise LockHeld("unknown: the lock file was removed", self._does)
        if holder.get("token") != self._token:
            raise LockHeld(f"process {holder.get('pid')} on {holder.get('host')}, which took the lock over", self._does)

    def held_by(self) -> str | None:
        """Who holds the lock, and lives; None for nobody. Looks only."""
        holder = self._holder()
        lives = holder and self._lives(holder, self._path, time.time())
        return f"process {holder.get('pid')} on {holder.get('host')}" if lives else None

    def _holder(self) -> dict[str, Any]:
        try:
            return _facts(bounded.read_text(self._path, errors="replace"))
        except FileNotFoundError:
            return {}

    def _take_away_stale(self, now_unix_s: float) -> None:
        """`now_unix_s` by the clock of the filesystem, which has also written down when the lock was renewed."""
        try:
            holder_text = bounded.read_text(self._path, errors="replace")
        except FileNotFoundError:
            return
        holder = _facts(holder_text)
        if self._lives(holder, self._path, now_unix_s) and holder.get("token") != self._token:
            raise LockHeld(f"process {holder.get('pid')} on {holder.get('host')}", self._does)
        stale = self._path.with_name(f".lock.stale.{self._token}")
        try:
            self._path.rename(stale)
            if bounded.read_text(stale, errors="replace") != holder_text:  # another has replaced it: give it back
                with contextlib.suppress(FileExistsError):
                    os.link(stale, self._path)
            stale.unlink()
        except FileNotFoundError:  # somebody else was quicker
            return

    def _sweep(self) -> None:
        """Takes away what processes that were killed while they took the lock have left beside it."""
        for left in self._path.parent.glob(".lock.*"):
            with contextlib.suppress(FileNotFoundError):
                if not self._lives(_facts(bounded.read_text(left, errors="replace")), left, self._now_there_unix_s):
                    left.unlink()

    def _lives(self, holder: dict[str, Any], path: Path, now_unix_s: float) -> bool:
        if holder.get("machine") != machine():
            said_unix_s = [_written(path), _written(self._lives_path) if path == self._path else None]
            return any(at is not None and now_unix_s - at < self._lease_s for at in said_unix_s)
        try:
            return start_of(int(holder["pid"])) == int(holder["start"])
        except (OSError, KeyError, TypeError, ValueError):
            return False


class _Renewals:
    """Of all locks that the process holds: each by a thread of its own, since its filesystem may hang."""

    def __init__(self) -> None:
        self._due_s: dict[RunLock, float] = {}  # of those that are held; monotonic seconds
        self._under_way: dict[RunLock, Thread] = {}
        self._changed = Condition()
        self._runs = False

    def begin(self, lock: RunLock) -> None:
        with self._changed:
            self._due_s[lock] = time.monotonic() + _RENEW_S
            self._changed.notify()
            if not self._runs:
                self._runs = True
                Thread(target=self._run, name="sentinel-locks", daemon=True).start()

    def end(self, lock: RunLock) -> None:
        with self._changed:
            self._due_s.pop(lock, None)

    def _run(self) -> None:
        with self._changed:
            while self._due_s:
                lock, due_s = min(self._due_s.items(), key=lambda held: held[1])
                if (left_s := due_s - time.monotonic()) > 0:
                    self._changed.wait(left_s)  # or until another is held; no lock is renewed before it is due
                    continue
                self._due_s[lock] = time.monotonic() + _RENEW_S
                self._under_way = {one: thread for one, thread in self._under_way.items() if thread.is_alive()}
                if lock not in self._under_way:
                    self._under_way[lock] = Thread(target=_renew, args=(lock,), name="sentinel-lock", daemon=True)
                    with contextlib.suppress(RuntimeError):  # there can be no more threads just now
                        self._under_way[lock].start()
            self._runs = False


def _renew(lock: RunLock) -> None:
    with contextlib.suppress(SentinelError):  # who acts asks again, and hears it then
        lock.lives()


_renewals = _Renewals()


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _facts(text: str) -> dict[str, Any]:
    try:
        return load_object(text)
    except LineError:
        return {}
