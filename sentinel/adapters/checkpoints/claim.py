"""Which state folder acts on a save folder, on record in the save folder: a second one is refused."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.adapters.checkpoints.quarantine import QUARANTINE
from sentinel.durable import make_folders, os_errors_named, sync_folder, write_atomically
from sentinel.processes import machine, start_of
from sentinel.vocabulary.errors import (
    FilesystemUnavailable,
    LineError,
    LockHeld,
    NotOurCheckpoints,
    QuarantineError,
    SentinelError,
)
from sentinel.vocabulary.numbers import dump_json, load_object

_RENEW_S = 60.0  # between two renewals of the nonce
_MISSED = 3  # renewals after which a process on another machine counts as gone


class Claim:
    """SAVE_FOLDER/.sentinel-quarantine/state-folder.json against STATE_DIR/identity.json.

    The lock is of one state folder; two of them with one save folder would each act on the other's checkpoints. A
    copied state folder has the same identity but another inode, which a rename and another mount point keep, or lies on
    another filesystem; and it has an old nonce: whoever acts writes a new one into both files, every minute. While a
    process that acts lives, or has renewed the nonce within three of them, no other process does.
    """

    def __init__(self, checkpoints: Path, state_dir: Path) -> None:
        self._folder, self._path = checkpoints, checkpoints / QUARANTINE / "state-folder.json"
        self._state_dir, self._identity = state_dir, state_dir / "identity.json"
        self._mine: dict[str, Any] | None = None
        self._renewed_s = 0.0  # when, by the monotonic clock

    def problem(self) -> str | None:
        """Why this state folder may not act on these checkpoints, as a sentence; None where it may. Looks only."""
        with os_errors_named(self._path):
            there = _read(self._path)
            if there is None or self._is_ours(there):
                return None
        return str(self._refusal(there))

    def release(self) -> None:
        """This process acts no more: another one of this state folder may at once."""
        with contextlib.suppress(OSError, SentinelError):
            if self._mine is not None and _read(self._path) == self._mine:
                write_atomically(self._path, dump_json({**self._mine, "holder": None}) + "\n")
        self._mine = None

    def keep(self) -> None:
        """Records this state folder where no other is on record, under the run's lock; else NotOurCheckpoints.

        LockHeld where another process of a state folder like this one acts. Called at each turn and before each action.
        A save folder that does not exist yet is recorded once it does.
        """
        if not self._folder.is_dir():
            return
        with os_errors_named(self._path):
            there = _read(self._path)
            if there is not None and there == self._mine:
                if time.monotonic() - self._renewed_s >= _RENEW_S:
                    self._renew()
                return
            if there is None:
                self._mine = self._minted()
                if self._path.parent.is_symlink():
                    raise QuarantineError(f"{self._path.parent} is a link: what is moved there could end anywhere")
                make_folders(self._path.parent)
                with contextlib.suppress(FileExistsError):
                    _write_first(self._path, self._mine)
            elif self._mine is None and self._is_ours(there):  # of an earlier process; it may have been moved since
                if self._is_held(there):
                    of = f"of the state folder {there.get('state_dir')} on {there.get('host')}"
                    who, does = f"process {there['holder'].get('pid')} {of}", "acts on these checkpoints"
                    raise LockHeld(who, does)
                self._renew()
            if (there := _read(self._path)) != self._mine:
                raise self._refusal(there or {})

    def _renew(self) -> None:
        """A crash leaves the old nonce or the new one in the record, and this state folder knows both."""
        identity = _read(self._identity) or {}
        facts, nonce = {"id": identity.get("id", secrets.token_hex(16))}, secrets.token_hex(16)
        try:
            write_atomically(self._identity, dump_json({**facts, "nonce": identity.get("nonce"), "next": nonce}) + "\n")
            mine = {**self._facts(), "nonce": nonce}
            write_atomically(self._path, dump_json(mine) + "\n")
        except FilesystemUnavailable:  # a full disk
            if self._mine is None:
                raise
            return
        self._mine, self._renewed_s = mine, time.monotonic()
        with contextlib.suppress(FilesystemUnavailable):
            write_atomically(self._identity, dump_json({**facts, "nonce": nonce}) + "\n")

    def _minted(self) -> dict[str, Any]:
        if _read(self._identity) is None:
            with contextlib.suppress(FileExistsError):
                _write_first(self._identity, {"id": secrets.token_hex(16), "nonce": secrets.token_hex(16)})
        self._renewed_s = time.monotonic()
        return self._facts()

    def _facts(self) -> dict[str, Any]:
        identity, inode, filesystem = _read(self._identity) or {}, 0, 0
        with contextlib.suppress(OSError):
            inode, filesystem = self._state_dir.stat().st_ino, os.statvfs(self._state_dir).f_fsid
        return {
            "id": identity.get("id"),
            "nonce": identity.get("nonce"),
            "state_dir": str(self._state_dir.resolve()),
            "host": socket.gethostname(),
            "inode": inode,
            "filesystem": filesystem,
            "holder": {"machine": machine(), "pid": os.getpid(), "start": start_of(os.getpid())},
        }

    def _is_ours(self, there: dict[str, Any]) -> bool:
        identity = _read(self._identity) or {}
        nonces = {identity.get("nonce"), identity.get("next")}
        return _is_same(there, self._facts()) and there.get("nonce") in nonces

    def _is_held(self, there: dict[str, Any]) -> bool:
        """Whether another process acts, as far as is known here."""
        holder = there.get("holder")
        if not isinstance(holder, dict) or holder == self._facts()["holder"]:
            return False
        if holder.get("machine") != machine():
            return _age_s(self._path) < _MISSED * _RENEW_S
        try:
            return start_of(int(holder["pid"])) == int(holder["start"])
        except (OSError, KeyError, TypeError, ValueError):
            return False

    def _refusal(self, there: dict[str, Any]) -> NotOurCheckpoints:
        other, host = there.get("state_dir", "that is not on record any more"), there.get("host", "unknown")
        return NotOurCheckpoints(
            f"{self._folder} is acted on from the state folder {other} (host {host}), and this one is "
            f"{self._state_dir}: stop the watch of the other, then delete {self._path} to hand the checkpoints over"
        )


def _is_same(there: dict[str, Any], mine: dict[str, Any]) -> bool:
    if not mine["id"] or there.get("id") != mine["id"]:
        return False
    if there.get("inode") == mine["inode"] and there.get("filesystem", mine["filesystem"]) == mine["filesystem"]:
        return True
    return all(there.get(k) == mine[k] for k in ("state_dir", "host"))


def _age_s(path: Path) -> float:
    """Seconds since it was written, by its filesystem's clock; this machine's where nothing can be made there."""
    beside, now_unix_s = path.with_name(f".{path.name}.{secrets.token_hex(8)}.now"), time.time()
    with contextlib.suppress(OSError):
        beside.touch()
        now_unix_s = beside.stat().st_mtime
        beside.unlink()
    return now_unix_s - path.stat().st_mtime


def _read(path: Path) -> dict[str, Any] | None:
    """None where it is not there; empty where it is not a JSON object."""
    try:
        return load_object(bounded.read_text(path, bounded.SECRET_BYTES, errors="replace"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except LineError:
        return {}


def _write_first(path: Path, facts: dict[str, Any]) -> None:
    """On the disk, whole; FileExistsError where another was there first."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    write_atomically(beside, dump_json(facts) + "\n")
    try:
        path.hardlink_to(beside)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without hard links
        with path.open("x", encoding="utf-8") as file:
            file.write(dump_json(facts) + "\n")
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)
