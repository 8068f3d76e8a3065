"""Small files under STATE_DIR: approvals, overrides.json and pinned-by-watch.json, which sentinel writes; PAUSED and
KILL, by which a person holds it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from sentinel import bounded
from sentinel.durable import write_atomically
from sentinel.plan.incident.incident import Approval
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Overrides, decode_overrides, encode_overrides

log = logging.getLogger(__name__)

PAUSED, KILL = "PAUSED", "KILL"


def holds(state_dir: Path, name: str) -> bool:
    """Whether an entry PAUSED or KILL is in the state folder: a file, a folder, or a link, wherever it leads. Only the
    answer "no such file" counts as absent: while the filesystem gives another error, sentinel does not act."""
    try:
        (state_dir / name).lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("%s counts as there: %s", state_dir / name, error.strerror)
    return True


class Approvals:
    """STATE_DIR/approvals/INCIDENT.json: a person's yes, on its way to the daemon; the last one replaces the others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[str, Approval]:
        """Incident -> approval. One that can't be read is no yes, and is logged."""
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                found[path.stem] = bounded.read_record(
                    path,
                    lambda data: Approval(
                        digest=str(data["digest"]), by=str(data["by"]), time_unix_s=float(data["time_unix_s"])
                    ),
                )
            except (OSError, LineError) as error:
                log.warning("this is no yes: %s", error)
        return found

    def write(self, incident: str, approval: Approval) -> None:
        """Replaces the incident's approval, and returns when it is on the disk."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data = {"digest": approval.digest, "by": approval.by, "time_unix_s": approval.time_unix_s}
        write_atomically(self._folder / f"{checked_name(incident, 'incident')}.json", dump_json(data))


class OverridesFile:
    """STATE_DIR/overrides.json: read by the trainer at its start."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Overrides | None:
        """What it says; None when there is none. OverridesError when it is not what sentinel writes."""
        try:
            return decode_overrides(bounded.read_text(self._path))
        except FileNotFoundError:
            return None

    def write(self, overrides: Overrides) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, encode_overrides(overrides))

    def take_away(self, rollback: str) -> None:
        """Moves it to a name of its own, for a run that had none before that rollback. Nothing to do where none is."""
        if self._path.exists():
            self._path.rename(self._path.with_name(f"overrides.{checked_name(rollback, 'rollback')}.undone.json"))


class OwnPins:
    """STATE_DIR/pinned-by-watch.json: which pins are the watch's own. All others are a person's."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "pinned-by-watch.json"

    def read(self) -> list[str]:
        """The tags; none where the file is not there or can't be read: then they count as a person's."""
        try:
            return bounded.read_record(self._path, lambda data: [str(tag) for tag in data["tags"]])
        except (OSError, LineError):
            return []

    def write(self, tags: Sequence[str]) -> None:
        write_atomically(self._path, dump_json({"tags": list(tags)}))
