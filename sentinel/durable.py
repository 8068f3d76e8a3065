"""Files written so that a crash leaves the old or the new, never half: write, fsync, rename, fsync of the folder."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_folder", "write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file's content, whole or not at all, and returns when it is on the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Returns when the folder's entries (renames, new files) are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
