"""The only deletion: an incident's quarantine, when a person has typed its name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from sentinel.durable import sync_folder
from sentinel.vocabulary.errors import QuarantineError

_GOING = ".purging"


def size_of(room: Path) -> tuple[int, int]:
    """Files and bytes under a quarantine folder, what an earlier purge left of it included."""
    sizes = [path.lstat().st_size for folder in _rooms(room) for path in folder.rglob("*") if not path.is_dir()]
    return len(sizes), sum(sizes)


def purge(room: Path) -> None:
    """Deletes a quarantine folder: first by a rename, so that one cut short is not taken for a whole quarantine.
    QuarantineError when it is a link: what it leads to is not ours to delete."""
    if room.is_symlink():
        raise QuarantineError(f"{room} is a link: what it leads to is not deleted")
    if room.is_dir():
        room.rename(room.with_name(f"{room.name}{_GOING}"))
        sync_folder(room.parent)
    for folder in _rooms(room):
        shutil.rmtree(folder)


def _rooms(room: Path) -> Iterator[Path]:
    for folder in (room, room.with_name(f"{room.name}{_GOING}")):
        if folder.is_dir() and not folder.is_symlink():
            yield folder
