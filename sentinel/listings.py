"""What lies in a folder, remembered for as long as the folder's inode and modification time stay what they are.

A folder's modification time changes when an entry comes, goes or is renamed; not when a file in it grows, nor when
something changes in a folder below. Two changes within one tick of a filesystem's clock (up to 2 s) leave the same
time: a listing is remembered only once its time has been known for that long, by the monotonic clock. The folder is
opened to ask for its time: NFS then asks its server instead of its cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SETTLE_S = 2.0  # the coarsest tick of a filesystem's clock (FAT, some NFS servers), seconds
Kind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The entries of one folder at one moment."""

    identity: tuple[int, ...]  # of the folder: device, inode, mtime in ns, size in bytes
    kinds: Mapping[str, Kind]  # by name
    inodes: Mapping[str, int]  # by name


@dataclass(slots=True)
class _Known:
    listing: Listing
    since_s: float  # when its identity was seen first, by the monotonic clock
    settled: bool  # whether it was listed so long after that, that nothing can have changed since without a trace


class Listings:
    """Listings of several folders."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Path, _Known] = {}

    def of(self, folder: Path, *, fresh: bool = False) -> Listing | None:
        """The folder's entries: three system calls where it has not changed. None where there is no such folder.
        `fresh` lists it in any case. OSError when it can't be listed."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            self._known.pop(folder, None)
            return None
        try:
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            known, now_s = self._known.get(folder), self._clock()
            if known is not None and known.listing.identity != identity:
                known = None
            if known is not None and known.settled and not fresh:
                return known.listing
            with os.scandir(descriptor) as entries:
                found = {entry.name: (kind_of(entry), entry.inode()) for entry in entries}
        finally:
            os.close(descriptor)
        since_s = now_s if known is None else known.since_s
        listing = Listing(identity, {n: kind for n, (kind, _) in found.items()}, {n: i for n, (_, i) in found.items()})
        if known is not None and (known.listing.kinds, known.listing.inodes) == (listing.kinds, listing.inodes):
            listing = known.listing
        self._known[folder] = _Known(listing, since_s, now_s - since_s >= SETTLE_S)
        return listing


def kind_of(entry: os.DirEntry[str]) -> Kind:
    """What the entry is itself, not what a link leads to."""
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
