"""Everything in one checkpoint's folder, and what of it does not belong into a checkpoint. Opens nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LONGEST_SHOWN = 200


def shown(name: str) -> str:
    """The name as it is where it is plain; else quoted and escaped: a newline in a name must not forge a log line."""
    plain = name.isascii() and name.isprintable() and not set(name) & set("\"'`;|&$<>")
    text = name if plain and name == name.strip() and name else ascii(name)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One regular file."""

    name: str  # its path below the checkpoint, with slashes
    size_bytes: int
    mtime_ns: int
    identity: tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A checkpoint's folder, walked whole."""

    files: tuple[Item, ...] = ()  # ordered by name
    folders: frozenset[str] = frozenset()
    refusal: str | None = None  # what was found that a trainer does not write, as a sentence; the walk ended there

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
    checkpoints nor this process's user: another user could change it at any time.
    """
    owners = frozenset({folder.parent.stat().st_uid, os.geteuid()})
    files, folders = list[Item](), set[str]()
    try:
        top = folder.lstat()
        if not stat.S_ISDIR(top.st_mode):
            return Contents(refusal=f"{shown(folder.name)} is not a folder of its own")
        if (refused := _refused(folder.name, top, owners, top.st_dev)) is not None:
            return Contents(refusal=refused)
        for name, status in _entries(folder):
            if (refused := _refused(name, status, owners, top.st_dev)) is not None:
                return Contents(refusal=refused)
            if stat.S_ISDIR(status.st_mode):
                folders.add(name)
            else:
                identity = (status.st_dev, status.st_ino)
                files.append(Item(name=name, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, identity=identity))
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
        owner = f"belongs to user {status.st_uid}"
        return f"{shown(name)} {owner}, who owns neither the checkpoints' folder nor this process"
    if status.st_dev != device:
        return f"{shown(name)} lies on another filesystem than the checkpoint"
    return None
