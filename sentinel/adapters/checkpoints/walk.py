"""Everything in one checkpoint's folder, and what of it does not belong into a checkpoint. Opens nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.checkpoints.shown import shown

__all__ = ["Contents", "Item", "walk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One regular file."""

    name: str
    """Its path below the checkpoint, with slashes."""

    size_bytes: int
    mtime_ns: int
    device: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A checkpoint's folder, walked whole."""

    files: tuple[Item, ...] = ()
    """Ordered by name."""

    folders: frozenset[str] = frozenset()
    refusal: str | None = None
    """What was found that a trainer does not write, as a sentence; then the walk ended there."""

    @property
    def names(self) -> frozenset[str]:
        """Paths of files and folders."""
        return self.folders | {item.name for item in self.files}

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.files)


def walk(folder: Path) -> Contents:
    """All files of a checkpoint, or the first thing that makes it untrusted.

    Refused are links, devices, pipes and sockets (reading them would read elsewhere, or for ever), another filesystem
    mounted inside (a rename can't take it along), and what belongs to neither the owner of the folder that holds the
    checkpoints nor to us: somebody else could change it at any time.
    """
    owners = frozenset({folder.parent.stat().st_uid, os.geteuid()})
    try:
        top = folder.lstat()
    except OSError as error:
        return Contents(refusal=f"{shown(folder.name)} can't be looked at: {error.strerror}")
    if not stat.S_ISDIR(top.st_mode):
        return Contents(refusal=f"{shown(folder.name)} is not a folder of its own")
    if (refused := _refused(folder.name, top, owners, top.st_dev)) is not None:
        return Contents(refusal=refused)
    files: list[Item] = []
    folders: set[str] = set()
    try:
        for name, status in _entries(folder):
            if (refused := _refused(name, status, owners, top.st_dev)) is not None:
                return Contents(refusal=refused)
            if stat.S_ISDIR(status.st_mode):
                folders.add(name)
            else:
                files.append(_item(name, status))
    except OSError as error:
        return Contents(refusal=f"{shown(folder.name)} can't be looked at: {error.strerror}")
    return Contents(files=tuple(sorted(files, key=lambda item: item.name)), folders=frozenset(folders))


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(folder / below) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                yield f"{below}{entry.name}", status
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(f"{below}{entry.name}/")


def _refused(name: str, status: os.stat_result, owners: frozenset[int], device: int) -> str | None:
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        return f"{shown(name)} is neither a file nor a folder: it is a link"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return f"{shown(name)} is neither a file nor a folder"
    if status.st_uid not in owners:
        return (
            f"{shown(name)} belongs to user {status.st_uid}, who owns neither the checkpoints' folder nor this process"
        )
    if status.st_dev != device:
        return f"{shown(name)} lies on another filesystem than the checkpoint"
    return None


def _item(name: str, status: os.stat_result) -> Item:
    return Item(
        name=name,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        device=status.st_dev,
        inode=status.st_ino,
    )
