"""When the job last wrote, by the modification times of what it writes; whether a person wants it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from sentinel import bounded
from sentinel.vocabulary.kill_file import decode_stop_order

__all__ = ["asks_all_to_stop", "last_written"]


def last_written(logs: Iterable[Path], checkpoints: Path) -> float | None:
    """The newest modification time of the logs (paths, or patterns of them) and of what is being saved; Unix seconds.

    None where none of it is there.
    """
    places = [*(found for path in logs for found in (path, *_matching(path))), *_newest_entries(checkpoints)]
    return max((at for place in places if (at := _modified(place)) is not None), default=None)


def _matching(pattern: Path) -> list[Path]:
    with contextlib.suppress(OSError, ValueError):
        return list(pattern.parent.glob(pattern.name)) if "*" in pattern.name else []
    return []


def _newest_entries(folder: Path) -> list[Path]:
    """The save folder, and what lies in its newest subfolder: a large checkpoint is written for minutes."""
    with contextlib.suppress(OSError):
        newest = max((p for p in folder.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, default=None)
        return [folder, *(newest.iterdir() if newest else ())]
    return []


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def asks_all_to_stop(kill_file: Path) -> bool:
    """Whether a person has asked every trainer to stop. Sentinel's own order is for one job, and goes with it."""
    try:
        return decode_stop_order(bounded.read_text(kill_file, errors="replace")) is None
    except FileNotFoundError:
        return False
    except bounded.UnfitFileError:  # no file of sentinel's
        return True
