"""STATE_DIR/SAVE: a checkpoint is wanted at the end of the step, by sentinel (an early warning) or by a person."""

from __future__ import annotations

from pathlib import Path


class SaveRequest:
    """Sees the file once each time that it is written. One that was there before is an earlier attempt's."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "SAVE"
        self._seen = self._written()

    def is_new(self) -> bool:
        """Whether the file was written since the last call; costs one stat. Unreadable is no request."""
        before, self._seen = self._seen, self._written()
        return self._seen is not None and self._seen != before

    def _written(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino
