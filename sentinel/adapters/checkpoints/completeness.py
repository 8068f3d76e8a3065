"""A cheap look at every checkpoint: complete by its names, or not. With 4,000 files each, listing all would take long.

The newest ones are listed, as many as a budget allows; of the older ones only a few files are looked for, by the names
that a listed sibling has. A target is walked and read whole before it is trusted (`verify`), so that a wrong answer
about an old one costs only time.

What was found is remembered until the checkpoint's folder changes (`save_folder` says of which it asks). What can
change without a trace in the folder's own time (an empty file that is filled, a file in a folder below) is looked at
again each time that the folder is asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.adapters.checkpoints.archive import UnsoundError, is_closed
from sentinel.adapters.checkpoints.declared import Declared, half_written
from sentinel.adapters.checkpoints.entries import Entries
from sentinel.adapters.checkpoints.layouts import Layout, Named
from sentinel.adapters.checkpoints.reading import open_plain
from sentinel.adapters.checkpoints.save_folder import MOST_FILES, View
from sentinel.listings import Kind, kind_of
from sentinel.vocabulary.names import shown

_ENTRIES_PER_SCAN = 20_000  # names that one scan lists: some 50 ms on a local disk
_SIZES_UP_TO = 512  # files of a checkpoint whose sizes are looked at: each is a request on a network filesystem
_SPOT_CHECKS = 3  # files that are looked for in an old checkpoint
_DIGITS = re.compile("[0-9]{1,15}")


@dataclass(slots=True)
class Completeness:
    """What a cheap look at a checkpoint has shown."""

    names: frozenset[str] = frozenset()  # at its top, where that was listed
    problem: str | None = None  # as a sentence
    known: bool = True  # False: whether it is whole can't be told
    lasting: bool = True  # False: it may change without a change of the folder's own time
    declared: Declared | None = field(default=None, compare=False)  # None until it is read

    @property
    def complete(self) -> bool | None:
        return self.problem is None if self.known else None


@dataclass(frozen=True, slots=True)
class _Remembered:
    found: Completeness
    marks: tuple[int, ...] | None  # of the folder, or of the files
    spots: tuple[str, ...] | None  # the files that were looked for; None: it was listed
    settled: bool  # whether its marks would show a change since

    def shows(self, spots: tuple[str, ...] | None) -> bool:
        """Whether its listing has the files that would be looked for."""
        listed = self.spots is None and spots is not None and self.found.lasting and self.found.problem is None
        return listed and self.found.names.issuperset(spots or ())


class CompletenessScan:
    """Looks at checkpoints; remembers what was found until they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._remembered: dict[str, _Remembered] = {}  # by tag, the newest first
        self._entries: Entries | None = None  # what the last scan was of
        self._found: dict[str, Completeness] = {}

    def doubtful(self) -> Iterator[str]:
        """Tags of what was not complete at the last scan, or may change without a trace; the newest first."""
        return (tag for tag, one in self._remembered.items() if one.found.problem is not None or not one.found.lasting)

    def scan(
        self, view: View, *, fresh: bool = False, progress: Callable[[float], None] | None = None
    ) -> dict[str, Completeness]:
        """By tag; the last scan's own object where nothing has changed. `fresh`: nothing remembered counts; `progress`
        is called with the share that is done."""
        checkpoints, before = view.entries.checkpoints, {} if fresh else self._remembered
        asked = [named for named in checkpoints if named.tag in view.asked and named.tag in before]
        anew = {n.tag: self._one(n, view, before[n.tag], before[n.tag].spots) for n in asked}
        if not fresh and view.entries is self._entries and all(one is before[tag] for tag, one in anew.items()):
            return self._found
        self._remembered, budget, likeness = {}, _ENTRIES_PER_SCAN, dict[Layout, tuple[str, ...]]()
        for number, named in enumerate(reversed(checkpoints), 1):
            spots = likeness.get(named.layout) if budget <= 0 and not named.layout.in_files else None
            one, known = anew.get(named.tag), before.get(named.tag)
            if one is None or known is None or known.spots != spots:
                one = self._one(named, view, known, spots)
            self._remembered[named.tag] = one
            if one.spots is None:
                budget -= len(one.found.names)
                if one.found.problem is None:
                    likeness[named.layout] = _ends(one.found.names, named.layout)
            if progress is not None:
                progress(number / len(checkpoints))
        listed = {tag: one.found for tag, one in self._remembered.items() if one.spots is None}
        fewer = self._fewer_shards(checkpoints, listed)
        self._entries, self._found = view.entries, {t: one.found for t, one in self._remembered.items()} | fewer
        return self._found

    def _one(self, named: Named, view: View, before: _Remembered | None, spots: tuple[str, ...] | None) -> _Remembered:
        """`spots`: the files to look for; None: it is listed."""
        identity = view.identities.get(named.tag)
        marks, settled = identity.marks if identity is not None else None, named.tag not in view.unsettled
        is_asked = named.tag in view.asked
        if before is not None and before.settled and marks is not None and before.marks == marks:
            if before.spots == spots and not (is_asked and (spots is not None or not before.found.lasting)):
                return before
            if not is_asked and before.shows(spots):
                return replace(before, found=Completeness(), spots=spots)
        if spots is not None and self._has(named.tag, spots):
            return _same_or(before, _Remembered(Completeness(), marks, spots, settled))
        return _same_or(before, _Remembered(self._listed(named, view), marks, None, settled))

    def _listed(self, named: Named, view: View) -> Completeness:
        identity, files = view.identities.get(named.tag), view.entries.files[named.tag]
        if (why := named.layout.refused(files)) is not None:
            return Completeness(problem=why)
        try:
            if named.layout.in_files and identity is not None and not identity.is_folder:
                return _closed(self._folder, files, named.layout)
            return _listed(self._folder / named.tag, named.layout)
        except OSError as error:
            why = f"{named.tag} can't be looked at: {error.strerror}"
            return Completeness(frozenset(), why, known=False, lasting=False)

    def _has(self, tag: str, names: tuple[str, ...]) -> bool:
        try:
            found = [(self._folder / tag / name).lstat() for name in names]
        except OSError:
            return False
        return all(stat.S_ISDIR(s.st_mode) or (stat.S_ISREG(s.st_mode) and s.st_size > 0) for s in found)

    def _fewer_shards(self, found: Sequence[Named], listed: dict[str, Completeness]) -> dict[str, Completeness]:
        """Of those listed that have fewer optimizer shards than a sibling: with what they declare about it."""
        counts = {n: n.layout.shards_of_ranks(listed[n.tag].names) for n in found if n.tag in listed}
        most, fewer = dict[Layout, int](), dict[str, Completeness]()
        for named, count in counts.items():
            most[named.layout] = max(count, most.get(named.layout, 0))
        for named, count in counts.items():
            if count == most[named.layout] or (seen := listed[named.tag]).problem is not None:
                continue
            if seen.declared is None:
                with contextlib.suppress(OSError, UnsoundError):
                    seen.declared = named.layout.declared_ranks(self._folder / named.tag, seen.names)
            fewer[named.tag] = replace(seen, problem=_lacks(seen, count, most[named.layout]))
        return fewer


def _same_or(before: _Remembered | None, now: _Remembered) -> _Remembered:
    """The object of before where it says the same, so that what was made of it is not made again."""
    return before if before is not None and before == now else now


def _lacks(seen: Completeness, shards: int, most: int) -> str | None:
    itself = seen.declared or Declared()
    fewer = None if itself.ranks_known else f"it has {shards} optimizer shards, and its siblings have {most}"
    return itself.problem or fewer


def _closed(folder: Path, files: Sequence[str], layout: Layout) -> Completeness:
    """Of files beside others: whether each has its end."""
    lasting = len(files) <= MOST_FILES
    for name in files:
        try:
            descriptor = open_plain(folder / name)
        except UnsoundError as error:
            return Completeness(frozenset(files), str(error), lasting=lasting)
        try:
            if not is_closed(descriptor, os.fstat(descriptor).st_size):
                why = f"{shown(name)} has no end: it is being written, or its save was cut short"
                return Completeness(frozenset(files), why, known=False, lasting=lasting)
        finally:
            os.close(descriptor)
    return Completeness(frozenset(files), layout.missing(frozenset(files), False))


def _listed(path: Path, layout: Layout) -> Completeness:
    if not stat.S_ISDIR(path.lstat().st_mode):
        return Completeness(frozenset(), f"{path.name} is not a folder of its own")
    with os.scandir(path) as entries:
        there = sorted(entries, key=lambda entry: entry.name)
    kinds: dict[str, Kind] = {entry.name: kind_of(entry) for entry in there}
    names = frozenset(kinds)
    if (odd := next((name for name, kind in kinds.items() if kind not in ("file", "folder")), None)) is not None:
        return Completeness(names, f"{shown(odd)} is neither a file nor a folder")
    youngest_ns = 0
    shards = (entry for entry in there if layout.shard.fullmatch(entry.name)) if len(there) <= _SIZES_UP_TO else ()
    for entry in shards:
        status = entry.stat(follow_symlinks=False)
        youngest_ns = max(youngest_ns, status.st_mtime_ns)
        if not status.st_size:
            return Completeness(names, f"{shown(entry.name)} is empty", lasting=False)
    if (lacks := layout.missing(names, False)) is not None:
        return Completeness(names, lacks)
    if absent := next((name for name in layout.below if not (path / name).is_file()), None):
        return Completeness(names, f"{absent} is missing", lasting=False)
    if ".metadata" in names:
        doubt = half_written((path / ".metadata").lstat().st_mtime_ns, youngest_ns)
        return Completeness(names, doubt, known=doubt is None, lasting=doubt is None)
    return Completeness(names)


def _ends(names: frozenset[str], layout: Layout) -> tuple[str, ...]:
    """The last ranks' shards of the commonest kinds: what a save that was cut short is likely to lack."""
    kinds: dict[str, list[str]] = {}
    for name in frozenset(filter(layout.shard.fullmatch, names)) or names:
        kinds.setdefault(_DIGITS.sub("", name), []).append(name)
    commonest = sorted(kinds.values(), key=len, reverse=True)[:_SPOT_CHECKS]
    return tuple(max(alike, key=lambda name: [int(n) for n in _DIGITS.findall(name)]) for alike in commonest)
