"""A cheap look at every checkpoint: complete by its names, or not. With 4,000 files each, listing all would take long.

The newest ones are listed, as many as a budget allows; of the older ones only a few files are looked for, by the names
that a listed sibling has. A target is walked and read whole before it is trusted (`verify`), so that a wrong answer
about an old one costs only time.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sentinel.adapters.checkpoints.archive import UnsoundError
from sentinel.adapters.checkpoints.declared import lacks_optimizer_shards
from sentinel.adapters.checkpoints.layouts import DEEPSPEED, Layout, Named, optimizer_shards
from sentinel.adapters.checkpoints.walk import shown

_ENTRIES_PER_LOOK = 20_000  # names that one call lists: some 50 ms on a local disk
_SIZES_UP_TO = 512  # files of a checkpoint whose sizes are looked at: each is a request on a network filesystem
_SPOT_CHECKS = 3  # files that are looked for in an old checkpoint
_DIGITS = re.compile("[0-9]{1,15}")


class _Seen(NamedTuple):
    """What listing the top of a checkpoint has shown."""

    names: frozenset[str]
    problem: str | None


class Looks:
    """Looks at checkpoints; remembers those listed that were complete, until they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[tuple[int, int], _Seen]] = {}  # by tag, with the folder's inode and mtime
        self._declared: dict[str, tuple[frozenset[str], tuple[str | None, bool]]] = {}  # by tag, with the names

    def problems(self, found: Sequence[Named]) -> dict[str, str | None]:
        """Tag -> why it is not complete, as a sentence; None where nothing speaks against it."""
        budget = _ENTRIES_PER_LOOK
        listed: dict[str, _Seen] = {}
        likeness: dict[Layout, tuple[str, ...]] = {}
        problems: dict[str, str | None] = {}
        for named in sorted(found, key=lambda n: n.order, reverse=True):
            alike = likeness.get(named.layout)
            if budget <= 0 and alike is not None and self._has(named.tag, alike):
                problems[named.tag] = None
                continue
            seen = listed[named.tag] = self._look(named)
            problems[named.tag] = seen.problem
            budget -= len(seen.names)
            if seen.problem is None:
                likeness[named.layout] = _ends(seen.names, named.layout)
        self._seen = {tag: seen for tag, seen in self._seen.items() if tag in listed}
        self._declared = {tag: known for tag, known in self._declared.items() if tag in listed}
        return problems | self._fewer_shards([n for n in found if n.layout is DEEPSPEED], listed)

    def _look(self, named: Named) -> _Seen:
        path = self._folder / named.tag
        try:
            status = path.lstat()
            identity = (status.st_ino, status.st_mtime_ns)
            known = self._seen.get(named.tag)
            if known is not None and known[0] == identity:
                return known[1]
            seen = _listed(path, status, named.layout)
        except OSError as error:
            return _Seen(frozenset(), f"{named.tag} can't be looked at: {error.strerror}")
        if seen.problem is None:
            self._seen[named.tag] = (identity, seen)
        return seen

    def _has(self, tag: str, names: tuple[str, ...]) -> bool:
        path = self._folder / tag
        try:
            if not stat.S_ISDIR(path.lstat().st_mode):
                return False
            return all(_there((path / name).lstat()) for name in names)
        except OSError:
            return False

    def _fewer_shards(self, found: Sequence[Named], listed: dict[str, _Seen]) -> dict[str, str | None]:
        """Of those listed that have fewer optimizer shards than a sibling: what they declare themselves about it."""
        listings = {n.tag: listed[n.tag].names for n in found if n.tag in listed}
        counts = {tag: len(optimizer_shards(names)) for tag, names in listings.items()}
        most = max(counts.values(), default=0)
        problems: dict[str, str | None] = {}
        for tag, count in counts.items():
            if count >= most or listed[tag].problem is not None:
                continue
            lacks, known = self._by_itself(tag, listings[tag])
            if lacks is None and not known:
                lacks = f"it has {count} optimizer shards, and its siblings have {most}"
            problems[tag] = lacks
        return problems

    def _by_itself(self, tag: str, names: frozenset[str]) -> tuple[str | None, bool]:
        if (before := self._declared.get(tag)) is not None and before[0] == names:
            return before[1]
        try:
            found = lacks_optimizer_shards(self._folder / tag, names)
        except (OSError, UnsoundError):
            return None, False
        self._declared[tag] = (names, found)
        return found


def _listed(path: Path, status: os.stat_result, layout: Layout) -> _Seen:
    if not stat.S_ISDIR(status.st_mode):
        return _Seen(frozenset(), f"{path.name} is not a folder of its own")
    with os.scandir(path) as entries:
        there = list(entries)
    names = frozenset(entry.name for entry in there)
    for entry in sorted(there, key=lambda e: e.name):
        if entry.is_symlink() or not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
            return _Seen(names, f"{shown(entry.name)} is neither a file nor a folder")
        is_checked = len(there) <= _SIZES_UP_TO and layout.shard.fullmatch(entry.name)
        if is_checked and not entry.stat(follow_symlinks=False).st_size:
            return _Seen(names, f"{shown(entry.name)} is empty")
    return _Seen(names, layout.missing(names, False))


def _there(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_size > 0)


def _ends(names: frozenset[str], layout: Layout) -> tuple[str, ...]:
    """The last ranks' shards of the commonest kinds: what a save that was cut short is likely to lack."""
    kinds: dict[str, list[str]] = {}
    for name in frozenset(filter(layout.shard.fullmatch, names)) or names:
        kinds.setdefault(_DIGITS.sub("", name), []).append(name)
    commonest = sorted(kinds.values(), key=len, reverse=True)[:_SPOT_CHECKS]
    return tuple(max(alike, key=lambda name: [int(n) for n in _DIGITS.findall(name)]) for alike in commonest)
