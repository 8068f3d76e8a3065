"""What sentinel or a person leaves for the trainer in its state folder: overrides.json, decided for this start; SAVE,
where a checkpoint is wanted at the end of the step."""

from __future__ import annotations

from pathlib import Path

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Overrides, decode_overrides


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


def read_overrides(state_dir: Path) -> Overrides | None:
    """None where nothing was decided. OverridesError names what is wrong with it."""
    path = state_dir / "overrides.json"
    try:
        return decode_overrides(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OverridesError(f"{path}: {error.strerror}") from error
