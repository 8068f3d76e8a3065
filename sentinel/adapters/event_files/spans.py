"""What is remembered of each event file, so that it is read once: how far its steps reach, on each axis.

What is certain: a file of the same inode, size and modification time has the same bytes, since event files are only
ever appended to. What is not: that steps rise. Several threads, a writer with purge_step, a trainer that went back
without ending, all write a step that is smaller than the one before it. So it is not the first and the last step
that tell whether a file lies before or after a cut, but the smallest and the largest of all its records.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.adapters.event_files.events import Axis, Events, read_events
from sentinel.adapters.event_files.frames import EventFile, Problem
from sentinel.bounded import open_regular, read_text
from sentinel.durable import write_atomically
from sentinel.vocabulary.errors import LineError, SentinelError
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides import Anchor

__all__ = ["Index", "Side", "Spans", "limits"]

_SCHEMA = 1
_SAVE_AFTER_BYTES = 1 << 24
"""Reading less than this again costs less than writing the index down at each look."""


class Side(StrEnum):
    """Where a file lies as against a cut."""

    BEFORE = "before"
    AFTER = "after"
    STRADDLES = "straddles"
    UNKNOWN = "unknown"
    """It has steps on axes alone whose value at the cut nobody knows."""


def limits(at: Anchor) -> dict[Axis, int | None]:
    """The largest step that stays, on each axis; None where it is not known."""
    unknown = None if at.global_step else 0  # at the very beginning nothing was consumed
    return {
        Axis.ITERATION: at.global_step,
        Axis.SAMPLES: unknown if at.consumed_samples is None else at.consumed_samples,
        Axis.TOKENS: unknown if at.consumed_tokens is None else at.consumed_tokens,
        Axis.OTHER: unknown,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """One event file, as far as it was read."""

    inode: int
    size: int
    """Bytes that the file had before it was read."""

    mtime_ns: int
    read: int = 0
    """Bytes that are whole records, from the beginning."""

    problem: Problem | None = None
    reached: Mapping[Axis, tuple[int, int]] = field(default_factory=dict)
    """Smallest and largest step of each axis that has any."""

    first_iteration: int | None = None
    """The first that an event says it belongs to; None for none."""

    def last(self, axis: Axis) -> int:
        """Largest step on the axis, 0 for none."""
        reached: tuple[int, ...] = self.reached.get(axis, ())
        return max((0, *reached))

    def is_of(self, stat: os.stat_result) -> bool:
        """Whether this is the file, with nothing written to it since."""
        return (self.inode, self.size, self.mtime_ns) == (stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def side(self, at: Anchor) -> Side:
        """Where the file lies as against a cut."""
        if not self.reached:
            return Side.BEFORE  # nothing that has a step
        known = {axis: limit for axis, limit in limits(at).items() if limit is not None and axis in self.reached}
        if Axis.ITERATION not in known and len(known) < len(self.reached):
            return Side.UNKNOWN
        # What is on an axis whose limit is unknown lies where the iterations lie.
        if all(self.reached[axis][1] <= limit for axis, limit in known.items()):
            return Side.BEFORE
        if all(self.reached[axis][0] > limit for axis, limit in known.items()):
            return Side.AFTER
        return Side.STRADDLES

    def extended(self, path: Path) -> Spans:
        """After reading what was appended since."""
        with open_regular(path) as file:
            stat = os.fstat(file.fileno())
            spans = replace(self, inode=stat.st_ino, size=stat.st_size, mtime_ns=stat.st_mtime_ns, problem=None)
            opened = EventFile(file, self.read)
            for stretch in opened.stretches():
                events, problem = read_events(stretch)
                spans = spans._with(events)
                if problem is not None:
                    return replace(spans, read=problem.at, problem=problem)
            return replace(spans, read=opened.at, problem=opened.problem)

    def _with(self, events: Events) -> Spans:
        reached = dict(self.reached)
        for axis in Axis:
            steps = events.steps[events.axes == axis]
            if axis < Axis.NONE and len(steps):
                low, high = int(np.min(steps)), int(np.max(steps))
                before = reached.get(axis, (low, high))
                reached[axis] = (min(low, before[0]), max(high, before[1]))
        first = self.first_iteration
        if first is None and len(said := events.iterations[events.iterations >= 0]):
            first = int(said[0])
        return replace(self, reached=reached, first_iteration=first)


class Index:
    """The spans of a folder's event files, by their names in it; written down where it is told to."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._spans: dict[str, Spans] = _load(file) if file is not None else {}
        self._unsaved_bytes = 0

    def of(self, name: str, path: Path) -> Spans:
        """The spans of the file as it is now; reads what was not read before."""
        stat = path.stat()
        known = self._spans.get(name)
        if known is not None and known.is_of(stat):
            return known
        new = Spans(inode=stat.st_ino, size=stat.st_size, mtime_ns=stat.st_mtime_ns)
        if known is None or known.inode != stat.st_ino or stat.st_size <= known.size:  # not merely appended to
            known = new
        spans = known.extended(path)
        was_whole = known is not new and (known.problem is None or known.problem.torn)
        if was_whole and spans.read == known.read and spans.problem is not None and not spans.problem.torn:
            spans = new.extended(path)  # no record where one has to begin: the file was written anew in its place
        self._spans[name] = spans
        self._unsaved_bytes += spans.read - known.read
        return spans

    def keep(self, names: set[str]) -> None:
        """Forgets the files that are not among the names, and writes the rest down when enough was read for it."""
        self._spans = {name: spans for name, spans in self._spans.items() if name in names}
        if self._file is None or self._unsaved_bytes < _SAVE_AFTER_BYTES:
            return
        self._unsaved_bytes = 0
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, dump_json({"schema": _SCHEMA, "files": _encoded(self._spans)}))
        except (OSError, SentinelError):  # the index only saves reading: a full or unwritable state folder is no harm
            return


def _encoded(spans: Mapping[str, Spans]) -> dict[str, Any]:
    return {
        name: asdict(one) | {"reached": {axis.name: reach for axis, reach in one.reached.items()}}
        for name, one in spans.items()
    }


def _load(file: Path) -> dict[str, Spans]:
    """What was written down; nothing where it is not there, torn, or of another version."""
    try:
        document = load_object(read_text(file))
        return {name: _decoded(one) for name, one in document["files"].items() if document["schema"] == _SCHEMA}
    except (OSError, LineError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _decoded(one: dict[str, Any]) -> Spans:
    problem = Problem(**one["problem"]) if one["problem"] else None
    reached = {Axis[name]: (int(low), int(high)) for name, (low, high) in one["reached"].items()}
    return Spans(**(one | {"problem": problem, "reached": reached}))
