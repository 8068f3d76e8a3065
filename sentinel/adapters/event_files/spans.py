"""How far each event file's steps reach on each axis, remembered so that a file is read once; and its parting at a cut.

A file of the same inode, size and modification time has the same bytes: event files are only ever appended to. Steps do
not always rise (several threads, purge_step, a trainer that went back), so that the smallest and the largest step of
all records, not the first and the last, tell whether a file lies before or after a cut.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sentinel.adapters.event_files.events import Axis, Events, read_events
from sentinel.adapters.event_files.frames import EventFile, Problem, Stretch
from sentinel.bounded import open_regular, read_text
from sentinel.durable import write_atomically
from sentinel.vocabulary.errors import LineError, SentinelError
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides import Anchor

_SCHEMA = 1
_SAVE_AFTER_BYTES = 1 << 24  # reading less than this again costs less than writing the index at each poll
_BUFFER_BYTES = 2**20


class Side(StrEnum):
    """Where a file lies as against a cut."""

    BEFORE = "before"
    AFTER = "after"
    STRADDLES = "straddles"
    UNKNOWN = "unknown"  # all its steps are on axes whose value at the cut is not known


def _limits(at: Anchor) -> dict[Axis, int | None]:
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
    inode: int
    size: int  # bytes that the file had before it was read
    mtime_ns: int
    read: int = 0  # bytes that are whole records, from the beginning
    problem: Problem | None = None
    reached: Mapping[Axis, tuple[int, int]] = field(default_factory=dict)  # smallest and largest step of each axis
    first_iteration: int | None = None  # of the first event that has one; None for none

    def last(self, axis: Axis) -> int:
        """Largest step on the axis, 0 for none."""
        return max(0, *self.reached.get(axis, (0,)))

    def is_of(self, stat: os.stat_result) -> bool:
        """Whether this is the file, with nothing written to it since."""
        return (self.inode, self.size, self.mtime_ns) == (stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def side(self, at: Anchor) -> Side:
        if not self.reached:
            return Side.BEFORE  # nothing that has a step
        known = {axis: limit for axis, limit in _limits(at).items() if limit is not None and axis in self.reached}
        if Axis.ITERATION not in known and len(known) < len(self.reached):
            return Side.UNKNOWN
        # What is on an axis whose limit is unknown lies where the iterations lie.
        if all(self.reached[axis][1] <= limit for axis, limit in known.items()):
            return Side.BEFORE
        if all(self.reached[axis][0] > limit for axis, limit in known.items()):
            return Side.AFTER
        return Side.STRADDLES

    def extended(self, path: Path) -> Spans:
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
        if first is None and len(known := events.iterations[events.iterations >= 0]):
            first = int(known[0])
        return replace(self, reached=reached, first_iteration=first)


class Index:
    """The spans of a folder's event files, by their names in it; kept in `file` where there is one."""

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
            encoded = {
                name: asdict(one) | {"reached": {axis.name: reach for axis, reach in one.reached.items()}}
                for name, one in self._spans.items()
            }
            write_atomically(self._file, dump_json({"schema": _SCHEMA, "files": encoded}))
        except (OSError, SentinelError):  # the index only saves reading: a full or unwritable state folder is no harm
            return


def _load(file: Path) -> dict[str, Spans]:
    """The written index; nothing where it is missing, torn, or of another version."""
    try:
        document = load_object(read_text(file))
        return {name: _decoded(one) for name, one in document["files"].items() if document["schema"] == _SCHEMA}
    except (OSError, LineError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _decoded(one: dict[str, Any]) -> Spans:
    problem = Problem(**one["problem"]) if one["problem"] else None
    reached = {Axis[name]: (int(low), int(high)) for name, (low, high) in one["reached"].items()}
    return Spans(**(one | {"problem": problem, "reached": reached}))


def part(path: Path, at: Anchor, spans: Spans, kept: Path, cut: Path) -> tuple[int, Problem | None]:
    """Writes what stays and what is cut off, both on the disk when this returns; the file itself is only read.

    Records are copied verbatim, after their checksums were checked. Returns the bytes of the file when it had been read
    to its end, and what is wrong with it: a torn end goes to what is cut off; after any other problem the parts are not
    usable.
    """
    with open_regular(path) as file, kept.open("wb", _BUFFER_BYTES) as keeps, cut.open("wb", _BUFFER_BYTES) as cuts:
        opened = EventFile(file)
        problem, iteration = None, spans.first_iteration or 0
        for stretch in opened.stretches():
            events, problem = read_events(stretch)
            bad = stretch.bad_checksums()
            if len(bad) and bad[0] <= len(events.steps):
                where = stretch.at + int(stretch.starts[bad[0]])
                what = f"the record at byte {where} does not have the checksum written with it"
                problem = Problem(at=where, what=what)
            if problem is not None:
                break
            stays, goes, iteration = _sides(events, at, iteration)
            _copy(stretch, stays, keeps)
            _copy(stretch, goes, cuts)
        problem = problem or opened.problem
        if problem is not None and problem.torn:
            file.seek(problem.at)
            shutil.copyfileobj(file, cuts, _BUFFER_BYTES)
        for written in (keeps, cuts):
            written.flush()
            os.fsync(written.fileno())
        return file.tell() if problem is None or problem.torn else 0, problem


def _sides(events: Events, at: Anchor, iteration: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], int]:
    """(stays, goes) for each event, and the last iteration: what stays is at or before the cut on its own axis.

    Where the cut's value on an axis is not known, an event goes with its own iteration, else with the one written
    before it (at a file's beginning: after it). Events without a tag go to both parts, so that each is a complete file,
    except session starts: they make TensorBoard forget earlier records of their steps.
    """
    known = np.concatenate(([iteration], events.iterations))
    carried = known[np.maximum.accumulate(np.where(known >= 0, np.arange(len(known)), 0))]
    stays = carried[1:] <= at.global_step
    for axis, limit in (_limits(at) | {Axis.SESSION: at.global_step}).items():
        if limit is not None:
            stays = np.where(events.axes == axis, events.steps <= limit, stays)
    in_both = events.axes == Axis.NONE
    return stays | in_both, ~stays | in_both, int(carried[-1])


def _copy(stretch: Stretch, wanted: NDArray[np.bool_], to: BinaryIO) -> None:
    data = memoryview(stretch.data)
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))  # of each unbroken run of True
    runs = edges.reshape(-1, 2).tolist()
    to.writelines(data[stretch.starts[first] : stretch.ends[after - 1]] for first, after in runs)
