"""Everything in a folder or in a few files, and what does not belong into a checkpoint. Opens nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.durable import make_folders
from sentinel.vocabulary.names import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One regular file."""

    name: str  # its path below the checkpoint, with slashes
    size_bytes: int
    mtime_ns: int
    identity: tuple[int, int]  # device and inode
    ctime_ns: int  # of the inode's last change: of its content, its owner, its mode, or the number of its names


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A checkpoint, walked whole."""

    tag: str = ""
    root: Path  # what the names are relative to: the checkpoint's own folder, or the one that its files lie in
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


def walk(folder: Path, files: Sequence[str] | None = None) -> Contents:
    """All files of a checkpoint, or the first thing that makes it untrusted. With `files`: these of the folder alone.

    Refused are links, devices, pipes and sockets (reading them would read elsewhere, or for ever), another filesystem
    mounted inside (a rename can't take it along), and what belongs to neither the owner of the folder that holds the
    checkpoints nor this process's user: another user could change it at any time.
    """
    holds_checkpoints = folder.parent if files is None else folder
    owners = frozenset({holds_checkpoints.stat().st_uid, os.geteuid()})
    found, folders = list[Item](), set[str]()
    try:
        top = folder.lstat() if files is None else folder.stat()
        if not stat.S_ISDIR(top.st_mode):
            return Contents(root=folder, refusal=f"{shown(folder.name)} is not a folder of its own")
        if files is None and (refused := _refused(folder.name, top, owners, top.st_dev)) is not None:
            return Contents(root=folder, refusal=refused)
        for name, status in _entries(folder) if files is None else ((n, (folder / n).lstat()) for n in files):
            if (refused := _refused(name, status, owners, top.st_dev)) is not None:
                return Contents(root=folder, refusal=refused)
            if stat.S_ISDIR(status.st_mode):
                folders.add(name)
            else:
                identity = (status.st_dev, status.st_ino)
                times = {"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}
                found.append(Item(name=name, size_bytes=status.st_size, identity=identity, **times))
    except OSError as error:
        return Contents(root=folder, refusal=f"{shown(folder.name)} can't be looked at: {error.strerror}")
    return Contents(root=folder, files=tuple(sorted(found, key=lambda item: item.name)), folders=frozenset(folders))


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


def mirrored(contents: Contents, destination: Path, put: Callable[[Path, Path], None]) -> None:
    """Makes the same folders below the destination, where they are not there, and has `put` make each file."""
    make_folders(destination)
    for folder in sorted(contents.folders):
        (destination / folder).mkdir(exist_ok=True)
    for item in contents.files:
        put(contents.root / item.name, destination / item.name)
