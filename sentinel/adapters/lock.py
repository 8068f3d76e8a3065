"""One sentinel per run: a lock that is made by link(), and left behind only by the dead."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from sentinel.durable import os_errors_named
from sentinel.vocabulary.errors import LineError, LockHeld
from sentinel.vocabulary.numbers import dump_json, load_object

__all__ = ["RunLock"]


class RunLock:
    """STATE_DIR/lock, held while the context lasts. LockHeld says who holds it.

    A lock of this host is stale when its process is gone; one of another host when it was not renewed for `lease_s`.
    """

    def __init__(self, state_dir: Path, *, lease_s: float = 120.0) -> None:
        self._path = state_dir / "lock"
        self._lease_s = lease_s
        self._token = uuid.uuid4().hex

    def __enter__(self) -> Self:
        with os_errors_named(self._path):
            self._take()
        with contextlib.suppress(OSError):  # the lock is ours; who comes next can sweep as well
            self._sweep()
        return self

    def _take(self) -> None:
        mine = self._path.with_name(f".lock.{self._token}")
        me = psutil.Process()
        facts = {"host": socket.gethostname(), "pid": me.pid, "start": me.create_time(), "token": self._token}
        try:
            mine.write_text(dump_json(facts), encoding="utf-8")
            for _ in range(3):
                try:
                    os.link(mine, self._path)
                except FileExistsError:
                    self._take_away_stale()
                else:
                    return
            raise LockHeld("it changes hands faster than it can be taken")
        finally:
            with contextlib.suppress(OSError):
                mine.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # what stays is a dead process's lock: the next one takes it over
            if self._holder().get("token") == self._token:
                self._path.unlink(missing_ok=True)

    def renew(self) -> None:
        """Says that the holder still lives. LockHeld when another has taken the lock over: then nothing may be done."""
        with os_errors_named(self._path):
            holder = self._holder()
            if holder.get("token") != self._token:
                raise LockHeld(f"process {holder.get('pid')} on {holder.get('host')}, which took the lock over")
            os.utime(self._path)

    def held_by(self) -> str | None:
        """Who holds the lock, and lives; None for nobody. Looks only."""
        holder = self._holder()
        return (
            f"process {holder.get('pid')} on {holder.get('host')}"
            if holder and self._lives(holder, self._path)
            else None
        )

    def _holder(self) -> dict[str, Any]:
        try:
            return _facts(self._path.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return {}

    def _take_away_stale(self) -> None:
        try:
            holder_text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        holder = _facts(holder_text)
        if self._lives(holder, self._path):
            raise LockHeld(f"process {holder.get('pid')} on {holder.get('host')}")
        stale = self._path.with_name(f".lock.stale.{self._token}")
        try:
            self._path.rename(stale)
            if (
                stale.read_text(encoding="utf-8", errors="replace") != holder_text
            ):  # somebody else had replaced it already: give it back
                with contextlib.suppress(FileExistsError):
                    os.link(stale, self._path)
            stale.unlink()
        except FileNotFoundError:  # somebody else was quicker
            return

    def _sweep(self) -> None:
        """Takes away what processes that were killed while they took the lock have left beside it."""
        for left in self._path.parent.glob(".lock.*"):
            with contextlib.suppress(FileNotFoundError):
                if not self._lives(_facts(left.read_text(encoding="utf-8", errors="replace")), left):
                    left.unlink()

    def _lives(self, holder: dict[str, Any], path: Path) -> bool:
        if holder.get("host") != socket.gethostname():
            try:
                return time.time() - path.stat().st_mtime < self._lease_s
            except FileNotFoundError:
                return False
        try:
            return abs(psutil.Process(int(holder["pid"])).create_time() - float(holder["start"])) < 1.0
        except (psutil.Error, KeyError, TypeError, ValueError):
            return False


def _facts(text: str) -> dict[str, Any]:
    """Who wrote it; nothing where a crash has left it empty."""
    try:
        return load_object(text)
    except LineError:
        return {}
