"""A cheap look at every checkpoint: complete by its names, or not. With 4,000 files each, listing all would take long.

The newest ones are listed, as many as a budget allows; of the older ones only a few files are looked for, by the names
that a listed sibling has. A target is walked and read whole before it is trusted (`verify`), so that a wrong answer
about an old one costs only time.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sentinel.adapters.checkpoints.archive import UnsoundError, is_closed
from sentinel.adapters.checkpoints.declared import Declared, deepspeed_ranks, half_written
from sentinel.adapters.checkpoints.layouts import DEEPSPEED, Layout, Named, optimizer_shards
from sentinel.adapters.checkpoints.reading import open_plain
from sentinel.adapters.checkpoints.walk import files_of
from sentinel.vocabulary.names import shown

_ENTRIES_PER_LOOK = 20_000  # names that one call lists: some 50 ms on a local disk
_SIZES_UP_TO = 512  # files of a checkpoint whose sizes are looked at: each is a request on a network filesystem
_SPOT_CHECKS = 3  # files that are looked for in an old checkpoint
_DIGITS = re.compile("[0-9]{1,15}")


@dataclass(slots=True)
class Looked:
    """What a cheap look at a checkpoint has shown."""

    names: frozenset[str] = frozenset()  # at its top, where that was listed
    problem: str | None = None  # as a sentence
    known: bool = True  # False: whether it is whole can't be told
    declared: Declared | None = None  # None until it is read

    @property
    def complete(self) -> bool | None:
        return self.problem is None if self.known else None


class Looks:
    """Looks at checkpoints; remembers those listed that were complete, until they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[tuple[int, ...], Looked]] = {}  # by tag, with inodes and mtimes

    def look(self, found: Sequence[Named]) -> dict[str, Looked]:
        """By tag."""
        budget = _ENTRIES_PER_LOOK
        listed: dict[str, Looked] = {}
        passed_over: dict[str, Looked] = {}
        likeness: dict[Layout, tuple[str, ...]] = {}
        for named in sorted(found, key=lambda n: n.order, reverse=True):
            alike = likeness.get(named.layout)
            if budget <= 0 and alike is not None and not named.layout.in_files and self._has(named.tag, alike):
                passed_over[named.tag] = Looked()
                continue
            seen = listed[named.tag] = self._look(named)
            budget -= len(seen.names)
            if seen.problem is None:
                likeness[named.layout] = _ends(seen.names, named.layout)
        self._seen = {tag: seen for tag, seen in self._seen.items() if tag in listed}
        return passed_over | listed | self._fewer_shards([n for n in found if n.layout is DEEPSPEED], listed)

    def _look(self, named: Named) -> Looked:
        path = self._folder / named.tag
        try:
            files = files_of(self._folder, named)
            paths = [path] if files is None else [self._folder / name for name in files]
            identity = tuple(n for s in (p.lstat() for p in paths) for n in (s.st_ino, s.st_mtime_ns, s.st_size))
            if (known := self._seen.get(named.tag)) is not None and known[0] == identity:
                return known[1]
            seen = _listed(path, named.layout) if files is None else _unclosed(self._folder, files, named.layout)
        except OSError as error:
            return Looked(frozenset(), f"{named.tag} can't be looked at: {error.strerror}", known=False)
        if seen.problem is None:
            self._seen[named.tag] = (identity, seen)
        return seen

    def _has(self, tag: str, names: tuple[str, ...]) -> bool:
        try:
            top, *rest = [(self._folder / tag / name).lstat() for name in ("", *names)]
        except OSError:
            return False
        there = (stat.S_ISDIR(s.st_mode) or (stat.S_ISREG(s.st_mode) and s.st_size > 0) for s in rest)
        return stat.S_ISDIR(top.st_mode) and all(there)

    def _fewer_shards(self, found: Sequence[Named], listed: dict[str, Looked]) -> dict[str, Looked]:
        """Of those listed that have fewer optimizer shards than a sibling: with what they declare about it."""
        counts = {n.tag: len(optimizer_shards(listed[n.tag].names)) for n in found if n.tag in listed}
        most = max(counts.values(), default=0)
        fewer = {tag: count for tag, count in counts.items() if count < most and listed[tag].problem is None}
        for tag in fewer:
            if listed[tag].declared is None:
                with contextlib.suppress(OSError, UnsoundError):
                    listed[tag].declared = deepspeed_ranks(self._folder / tag, listed[tag].names)
        return {tag: replace(listed[tag], problem=_lacks(listed[tag], n, most)) for tag, n in fewer.items()}


def _lacks(seen: Looked, shards: int, most: int) -> str | None:
    itself = seen.declared or Declared()
    fewer = None if itself.ranks_known else f"it has {shards} optimizer shards, and its siblings have {most}"
    return itself.problem or fewer


def _unclosed(folder: Path, files: Sequence[str], layout: Layout) -> Looked:
    """Of files beside others: whether each has its end."""
    for name in files:
        try:
            descriptor = open_plain(folder / name)
        except UnsoundError as error:
            return Looked(frozenset(files), str(error))
        try:
            if not is_closed(descriptor, os.fstat(descriptor).st_size):
                why = f"{shown(name)} has no end: it is being written, or its save was cut short"
                return Looked(frozenset(files), why, known=False)
        finally:
            os.close(descriptor)
    return Looked(frozenset(files), layout.missing(frozenset(files), False))


def _listed(path: Path, layout: Layout) -> Looked:
    if not stat.S_ISDIR(path.lstat().st_mode):
        return Looked(frozenset(), f"{path.name} is not a folder of its own")
    with os.scandir(path) as entries:
        there = list(entries)
    names = frozenset(entry.name for entry in there)
    youngest_ns = 0
    for entry in sorted(there, key=lambda e: e.name):
        if entry.is_symlink() or not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
            return Looked(names, f"{shown(entry.name)} is neither a file nor a folder")
        if len(there) <= _SIZES_UP_TO and layout.shard.fullmatch(entry.name):
            status = entry.stat(follow_symlinks=False)
            youngest_ns = max(youngest_ns, status.st_mtime_ns)
            if not status.st_size:
                return Looked(names, f"{shown(entry.name)} is empty")
    lacks = layout.missing(names, False)
    lacks = lacks or next((f"{name} is missing" for name in layout.below if not (path / name).is_file()), None)
    if lacks is None and ".metadata" in names:
        doubt = half_written((path / ".metadata").lstat().st_mtime_ns, youngest_ns)
        return Looked(names, doubt, known=doubt is None)
    return Looked(names, lacks)


def _ends(names: frozenset[str], layout: Layout) -> tuple[str, ...]:
    """The last ranks' shards of the commonest kinds: what a save that was cut short is likely to lack."""
    kinds: dict[str, list[str]] = {}
    for name in frozenset(filter(layout.shard.fullmatch, names)) or names:
        kinds.setdefault(_DIGITS.sub("", name), []).append(name)
    commonest = sorted(kinds.values(), key=len, reverse=True)[:_SPOT_CHECKS]
    return tuple(max(alike, key=lambda name: [int(n) for n in _DIGITS.findall(name)]) for alike in commonest)
