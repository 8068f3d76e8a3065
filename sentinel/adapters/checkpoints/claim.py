"""Which state folder acts on a save folder, on record in the save folder: a second one is refused."""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.adapters.checkpoints.quarantine import QUARANTINE
from sentinel.durable import make_folders, os_errors_named, sync_folder, write_atomically
from sentinel.vocabulary.errors import LineError, NotOurCheckpoints, QuarantineError
from sentinel.vocabulary.numbers import dump_json, load_object


class Claim:
    """SAVE_FOLDER/.sentinel-quarantine/state-folder.json against STATE_DIR/identity.json.

    The lock is of one state folder; two of them with one save folder would each act on the other's checkpoints. A
    copied state folder has the same identity but another inode, which a rename and another mount point keep.
    """

    def __init__(self, checkpoints: Path, state_dir: Path) -> None:
        self._folder, self._path = checkpoints, checkpoints / QUARANTINE / "state-folder.json"
        self._state_dir, self._identity = state_dir, state_dir / "identity.json"
        self._mine: dict[str, Any] | None = None

    def problem(self) -> str | None:
        """Why this state folder may not act on these checkpoints, as a sentence; None where it may. Looks only."""
        with os_errors_named(self._path):
            there = _read(self._path)
            if there is None or _is_same(there, self._facts()):
                return None
        return str(self._refusal(there))

    def keep(self) -> None:
        """Records this state folder where no other is on record, under the run's lock; else NotOurCheckpoints.

        Called before each action. A save folder that does not exist yet is recorded once it does.
        """
        if not self._folder.is_dir():
            return
        with os_errors_named(self._path):
            there = _read(self._path)
            if there is not None and there == self._mine:
                return
            if there is None:
                self._mine = self._minted()
                if self._path.parent.is_symlink():
                    raise QuarantineError(f"{self._path.parent} is a link: what is moved there could end anywhere")
                make_folders(self._path.parent)
                with contextlib.suppress(FileExistsError):
                    _write_first(self._path, self._mine)
            elif self._mine is None and _is_same(there, mine := self._minted()):  # it was moved, or by another host
                self._mine = mine
                write_atomically(self._path, dump_json(mine) + "\n")
            if (there := _read(self._path)) != self._mine:
                raise self._refusal(there or {})

    def _minted(self) -> dict[str, Any]:
        if _read(self._identity) is None:
            with contextlib.suppress(FileExistsError):
                _write_first(self._identity, {"id": secrets.token_hex(16)})
        return self._facts()

    def _facts(self) -> dict[str, Any]:
        identity, inode = (_read(self._identity) or {}).get("id"), 0
        with contextlib.suppress(OSError):
            inode = self._state_dir.stat().st_ino
        where = {"state_dir": str(self._state_dir.resolve()), "host": socket.gethostname(), "inode": inode}
        return {"id": identity, **where}

    def _refusal(self, there: dict[str, Any]) -> NotOurCheckpoints:
        other, host = there.get("state_dir", "that is not on record any more"), there.get("host", "unknown")
        return NotOurCheckpoints(
            f"{self._folder} is acted on from the state folder {other} (host {host}), and this one is "
            f"{self._state_dir}: stop the watch of the other, then delete {self._path} to hand the checkpoints over"
        )


def _is_same(there: dict[str, Any], mine: dict[str, Any]) -> bool:
    if not mine["id"] or there.get("id") != mine["id"]:
        return False
    return there.get("inode") == mine["inode"] or all(there.get(k) == mine[k] for k in ("state_dir", "host"))


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
