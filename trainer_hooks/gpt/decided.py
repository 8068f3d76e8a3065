"""What sentinel decided for this start: overrides.json, as the trainer finds it."""

from __future__ import annotations

from pathlib import Path

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Overrides, decode_overrides


def read_overrides(state_dir: Path) -> Overrides | None:
    """None where nothing was decided. OverridesError names what is wrong with it."""
    path = state_dir / "overrides.json"
    try:
        return decode_overrides(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OverridesError(f"{path}: {error.strerror}") from error
