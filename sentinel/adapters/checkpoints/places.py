"""Where a checkpoint of some name lies: a folder, or files of that name beside others."""

from __future__ import annotations

import os
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import Named, recognise
from sentinel.adapters.checkpoints.walk import Contents, walk


def checkpoints_in(folder: Path) -> list[Named]:
    """Every checkpoint of the folder, by step; none where it is not there. Reads nothing but the entries' names."""
    try:
        found = [named for entry in folder.iterdir() if (named := recognise(entry.name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted({named.tag: named for named in found}.values(), key=lambda named: named.order)


def entries_of(folder: Path, named: Named) -> list[str]:
    """The entries of the folder that the checkpoint consists of, those that are there; by name."""
    if not named.layout.in_files:
        return [named.tag] if os.path.lexists(folder / named.tag) else []
    names = (entry.name for entry in folder.iterdir())
    return sorted(name for name in names if (other := recognise(name)) is not None and other.tag == named.tag)


def files_of(folder: Path, named: Named) -> list[str] | None:
    """Its files where it is not a folder; None where it is one."""
    if not named.layout.in_files or (folder / named.tag).is_dir():
        return None
    return entries_of(folder, named)


def walk_checkpoint(folder: Path, named: Named) -> Contents:
    """Everything that the checkpoint consists of."""
    files = files_of(folder, named)
    return walk(folder / named.tag) if files is None else walk(folder, files)
