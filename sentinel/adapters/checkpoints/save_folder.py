"""The save folder as a poll sees it: the entries, and the inode and times of what can have changed since the last look.

A poll costs a few system calls, whatever lies there. It asks for the folder's own time, and lists it again when that
has changed. Of what lies in it, it asks for: whatever is new, the newest two by step and by time, those that the caller
names (a checkpoint that is not whole yet), and a few others in turn. Everything else counts as it was. What is about
to act looks afresh.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.adapters.checkpoints.entries import Entries, entries_of
from sentinel.listings import SETTLE_S, Listing, Listings
from sentinel.plan.incident.incident import Place

_NEWEST = 2  # by step and by modification time, each
_IN_TURN = 4  # others that one look asks for: 5,000 have all been asked for after 1,250 looks
_MOST_NAMED = 8  # of those that the caller names
MOST_FILES = 8  # of a checkpoint that is files beside one another, whose times stand for all of them


@dataclass(frozen=True, slots=True)
class Identity:
    """Of an entry of the save folder; of a checkpoint that is files beside one another, of some of them."""

    marks: tuple[int, ...]  # inode, mtime in ns and bytes of each
    mtime_ns: int  # the youngest; of what a link leads to
    is_folder: bool  # or a link to one


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one look has found."""

    entries: Entries = field(default_factory=Entries)
    # By unit (a checkpoint's tag, another folder's name); None: it can't be looked at. The next look changes it.
    identities: Mapping[str, Identity | None] = field(default_factory=dict)
    asked: Collection[str] = frozenset()  # whose identities are of this look
    unsettled: Collection[str] = frozenset()  # that may have changed since without a trace: nothing is remembered

    def newest(self, count: int, *, folders: bool) -> list[str]:
        """The folders that were changed last, or the checkpoints that are files; the newest first."""
        known = ((i, unit) for unit, i in self.identities.items() if i is not None and i.is_folder is folders)
        found = ((i.mtime_ns, unit) for i, unit in known if folders or unit in self.entries.files)
        return [unit for _, unit in heapq.nlargest(count, found)]


class SaveFolder:
    """Remembers what it has seen; one object for all that look at the folder."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = folder
        self.listings = Listings(clock)
        self._clock = clock
        self._listing: Listing | None = None
        self._entries = Entries()
        self._units: dict[str, tuple[str, ...]] = {}  # tag, or name of another folder -> its entries, the newest last
        self._identities: dict[str, Identity | None] = {}  # by unit
        self._since_s: dict[str, float] = {}  # when that identity was seen first
        self._turn = 0

    def place(self) -> Place:
        """Which folder this is, now."""
        try:
            return Place(path=os.path.realpath(self.path), inode=self.path.stat().st_ino)
        except OSError:
            return Place(path=os.path.realpath(self.path))

    def entries(self, *, fresh: bool = False) -> Entries:
        """The entries alone. OSError."""
        before, listing = self._listing, self.listings.of(self.path, fresh=fresh)
        if listing is not before:
            self._listing, self._entries = listing, entries_of(listing.kinds if listing else {})
            was, self._units = self._units, _units(self._entries)
            for unit, names in was.items():  # what is gone, and what another has taken the place of
                if names != self._units.get(unit) or not _same(before, listing, names):
                    self._identities.pop(unit, None)
                    self._since_s.pop(unit, None)
        return self._entries

    def look(
        self, *, fresh: bool = False, named: Iterable[str] = (), progress: Callable[[float], None] | None = None
    ) -> View:
        """`named`: units that are asked for as well, the first ones; `progress` is called with the share that is done.
        OSError when the folder can't be listed."""
        entries = self.entries(fresh=fresh)
        due = [*self._units] if fresh else self._due(named)
        now_s = self._clock()
        for number, unit in enumerate(due, 1):
            identity = _identity(self.path, self._units[unit])
            if unit not in self._since_s or self._identities[unit] != identity:
                self._identities[unit], self._since_s[unit] = identity, now_s
            if progress is not None:
                progress(number / len(due))
        return View(
            entries=entries,
            identities=self._identities,
            asked=frozenset(due),
            unsettled=self._not_settled(now_s, due),
        )

    def _due(self, named: Iterable[str]) -> list[str]:
        units, times = [*self._units], [(i.mtime_ns, unit) for unit, i in self._identities.items() if i is not None]
        due = dict.fromkeys(unit for unit in units if unit not in self._identities)
        due |= dict.fromkeys(checkpoint.tag for checkpoint in self._entries.checkpoints[-_NEWEST:])
        due |= dict.fromkeys(unit for _, unit in heapq.nlargest(_NEWEST, times))
        due |= dict.fromkeys(itertools.islice((unit for unit in named if unit in self._units), _MOST_NAMED))
        if units:
            due |= dict.fromkeys(units[(self._turn + n) % len(units)] for n in range(_IN_TURN))
            self._turn = (self._turn + _IN_TURN) % len(units)
        return [unit for unit in due if unit in self._units]

    def _not_settled(self, now_s: float, due: Iterable[str]) -> frozenset[str]:
        """Of what was asked for now: whose time may still be the filesystem's present one. Not where it is older, by
        more than a tick, than the newest time that is known there; the newest are always asked for."""
        times = {unit: i.mtime_ns for unit in due if (i := self._identities[unit]) is not None}
        recent_ns = max(times.values(), default=0) - int(SETTLE_S * 1e9)
        return frozenset(
            unit for unit, ns in times.items() if now_s - self._since_s[unit] < SETTLE_S and ns >= recent_ns
        )


def _units(entries: Entries) -> dict[str, tuple[str, ...]]:
    of_checkpoints = {named.tag: entries.files[named.tag] for named in entries.checkpoints}
    taken = {name for names in of_checkpoints.values() for name in names}
    others = (n for n, kind in entries.kinds.items() if kind in ("folder", "link") and n[0] != "." and n not in taken)
    return {name: (name,) for name in others} | of_checkpoints


def _same(one: Listing | None, other: Listing | None, names: Iterable[str]) -> bool:
    """Whether the names are of the same inodes; one that is free again may be given to another folder at once."""
    return one is not None and other is not None and all(one.inodes[name] == other.inodes[name] for name in names)


def _identity(folder: Path, names: Sequence[str]) -> Identity | None:
    marks, youngest_ns, is_folder = list[int](), 0, False
    for name in names if len(names) <= MOST_FILES else names[:: -(-len(names) // MOST_FILES)]:
        path = folder / name
        try:
            status = path.lstat()
        except OSError:
            return None
        marks += (status.st_ino, status.st_mtime_ns, status.st_size)
        if stat.S_ISLNK(status.st_mode):
            with contextlib.suppress(OSError):  # what it leads to
                status = path.stat()
        youngest_ns, is_folder = max(youngest_ns, status.st_mtime_ns), is_folder or stat.S_ISDIR(status.st_mode)
    return Identity(tuple(marks), youngest_ns, is_folder)
