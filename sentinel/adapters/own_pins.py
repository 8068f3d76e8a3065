"""STATE_DIR/pinned-by-watch.json: which pins are the watch's own. All others are a person's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentinel import bounded
from sentinel.durable import write_atomically
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["OwnPins"]


class OwnPins:
    """A list of tags in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[str]:
        """The tags; none where the file is not there or can't be read: then they count as a person's."""
        try:
            return bounded.read_record(self._path, lambda data: [str(tag) for tag in data["tags"]])
        except (OSError, LineError):
            return []

    def write(self, tags: Sequence[str]) -> None:
        """Replaces the list."""
        write_atomically(self._path, dump_json({"tags": list(tags)}))
