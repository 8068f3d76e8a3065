"""Where Hugging Face's Trainer writes event files unless it is told otherwise: `runs/`, below its output folder."""

from __future__ import annotations

import os
from pathlib import Path

_LOADED = "tfevents"  # TensorBoard loads files whose name contains this
_MOST = 1000  # entries that are looked at: one subfolder for each start, one event file in each


def runs_below(checkpoints: Path) -> Path | None:
    """`runs/` below the save folder, where it or a subfolder of it holds an event file; else None."""
    folder = checkpoints / "runs"
    if any(_LOADED in name for name in _names(folder)):
        return folder
    subfolders = (folder / name for name in _names(folder))
    return folder if any(_LOADED in name for sub in subfolders for name in _names(sub)) else None


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for _, entry in zip(range(_MOST), entries, strict=False)]
    except OSError:  # none, a file, or not readable
        return []
