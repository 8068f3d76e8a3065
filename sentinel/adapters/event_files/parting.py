"""One event file becomes two: what stays, and what is cut off. Records are copied verbatim, once checksums held."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sentinel.adapters.event_files.events import Axis, Events, read_events
from sentinel.adapters.event_files.frames import EventFile, Problem, Stretch
from sentinel.adapters.event_files.spans import Spans, limits
from sentinel.vocabulary.overrides import Anchor

__all__ = ["Parted", "part"]

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """What came of parting a file."""

    size: int
    """Bytes of the file when it had been read to its end."""

    problem: Problem | None
    """A torn end went to what is cut off; with any other problem the parts are not whole, and not to be used."""


def part(path: Path, at: Anchor, spans: Spans, kept: Path, cut: Path) -> Parted:
    """Writes the two parts, both on the disk when this returns; the file itself is only read."""
    with path.open("rb") as file, kept.open("wb", _BUFFER_BYTES) as keeps, cut.open("wb", _BUFFER_BYTES) as cuts:
        opened = EventFile(file)
        problem = None
        sorting = _Sorting(at, spans)
        for stretch in opened.stretches():
            events, problem = read_events(stretch)
            if (bad := stretch.first_bad_checksum()) is not None and bad <= len(events.steps):
                where = stretch.at + int(stretch.starts[bad])
                problem = Problem(
                    at=where, what=f"the record at byte {where} does not have the checksum written with it"
                )
            if problem is not None:
                break
            stays, goes = sorting.sort(events)
            _copy(stretch, stays, keeps)
            _copy(stretch, goes, cuts)
        problem = problem or opened.problem
        if problem is not None and problem.torn:
            file.seek(problem.at)
            shutil.copyfileobj(file, cuts, _BUFFER_BYTES)
        for written in (keeps, cuts):
            written.flush()
            os.fsync(written.fileno())
        return Parted(size=file.tell() if problem is None or problem.torn else 0, problem=problem)


class _Sorting:
    """Which events stay: those at or before the cut on their own axis.

    Where the cut's value on an axis is not known, an event goes with the iteration that it says it belongs to, else
    with the one that was written before it (in a file's beginning: after it). Events without a tag are in both parts,
    so that each is a file of its own; but for session starts: TensorBoard forgets what it read before of their steps.
    """

    def __init__(self, at: Anchor, spans: Spans) -> None:
        self._at = at
        self._iteration = spans.first_iteration or 0

    def sort(self, events: Events) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(stays, goes) for each event."""
        steps, axes = events.steps, events.axes
        iterations = self._carried(events.iterations)
        stays = iterations <= self._at.global_step
        for axis, limit in limits(self._at).items():
            if limit is not None:
                stays = np.where(axes == axis, steps <= limit, stays)
        stays = np.where(axes == Axis.SESSION, steps <= self._at.global_step, stays)
        in_both = axes == Axis.NONE
        return stays | in_both, ~stays | in_both

    def _carried(self, iterations: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each event's iteration: its own, or that of the last event before it that says one."""
        said = np.concatenate(([self._iteration], iterations))
        carried = said[np.maximum.accumulate(np.where(said >= 0, np.arange(len(said)), 0))]
        self._iteration = int(carried[-1])
        return carried[1:]


def _copy(stretch: Stretch, wanted: NDArray[np.bool_], to: BinaryIO) -> None:
    data = memoryview(stretch.data)
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))  # of each unbroken run of True
    runs = edges.reshape(-1, 2).tolist()
    to.writelines(data[stretch.starts[first] : stretch.ends[after - 1]] for first, after in runs)
