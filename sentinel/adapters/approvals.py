"""STATE_DIR/approvals/INCIDENT.json: a person's yes, on its way to the daemon."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.durable import write_atomically
from sentinel.plan.incident import Approval
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json

__all__ = ["Approvals"]

log = logging.getLogger(__name__)


class Approvals:
    """One file for each incident; the last yes replaces the one before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[str, Approval]:
        """Incident -> approval. One that can't be read is no yes, and is said in the log."""
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                found[path.stem] = bounded.read_record(path, _approval)
            except (OSError, LineError) as error:
                log.warning("this is no yes: %s", error)
        return found

    def write(self, incident: str, approval: Approval) -> None:
        """Replaces the incident's approval, and returns when it is on the disk."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data = {"digest": approval.digest, "by": approval.by, "time_unix_s": approval.time_unix_s}
        write_atomically(self._folder / f"{checked_name(incident, 'incident')}.json", dump_json(data))


def _approval(data: Mapping[str, Any]) -> Approval:
    return Approval(digest=str(data["digest"]), by=str(data["by"]), time_unix_s=float(data["time_unix_s"]))
