"""overrides.json: written by the daemon, read by the trainer at its start."""

from __future__ import annotations

from pathlib import Path

from sentinel import bounded
from sentinel.durable import write_atomically
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.overrides import Overrides, decode_overrides, encode_overrides

__all__ = ["OverridesFile"]


class OverridesFile:
    """STATE_DIR/overrides.json."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Overrides | None:
        """What it says; None when there is none. OverridesError when it is not what sentinel writes."""
        try:
            return decode_overrides(bounded.read_text(self._path))
        except FileNotFoundError:
            return None

    def write(self, overrides: Overrides) -> None:
        """Replaces it, atomically."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, encode_overrides(overrides))

    def take_away(self, rollback: str) -> None:
        """Moves it to a name of its own, for a run that had none before that rollback. Nothing to do where none is."""
        if self._path.exists():
            self._path.rename(self._path.with_name(f"overrides.{checked_name(rollback, 'rollback')}.undone.json"))
