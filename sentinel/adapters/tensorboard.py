"""A run's TensorBoard folder: cut at the rollback's target, each tag on its own axis; nothing is deleted.

What is cut off stays readable as a run of its own beside the folder, named after the rollback. The original of a file
that spans the cut goes to the quarantine, under a name that TensorBoard does not load.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sentinel.adapters.event_file import Event, read_events
from sentinel.durable import os_errors_named, sync_folder, write_atomically
from sentinel.vocabulary.errors import QuarantineError
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides import Anchor

__all__ = ["TensorBoard"]

_LOADED = "tfevents"
"""TensorBoard loads files whose name contains this."""
_ASIDE = "tf-events"
_KEPT = ".sentinel-kept"
_CUT = ".cut-off"


class TensorBoard:
    """The folder that the trainer's SummaryWriter writes to, with its subfolders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}  # bytes read, largest step on the iteration axis

    def last_step(self) -> int:
        """Largest step of the live event files on the iteration axis, 0 for none; maxsize while a cut is unfinished."""
        if any(True for _ in self._unfinished()):
            return sys.maxsize
        return max((self._last_step(path) for path in self._event_files()), default=0)

    def cut(self, at: Anchor, *, incident: str, rollback: str) -> None:
        """Cuts every event file at the target; takes a cut up again that was killed half-way."""
        if not self.folder.is_dir():
            return
        room = self._room(incident, rollback)
        room.mkdir(parents=True, exist_ok=True)
        listing = room / "files.json"
        if not listing.exists():
            names = [str(p.relative_to(self.folder)) for p in self._event_files()]
            write_atomically(listing, dump_json({"files": names}))
        for kept in list(self._unfinished()):
            self._finish(kept, room)
        for path in list(self._event_files()):
            self._cut_file(path, at, room, self._aside(rollback))
        sync_folder(room)
        self._seen.clear()

    def restore(self, incident: str, rollback: str) -> None:
        """Brings the files of before the cut back, byte for byte; what was written since is moved aside."""
        room = self._room(incident, rollback)
        listing = room / "files.json"
        if not listing.exists():
            return
        before = set(load_object(listing.read_text(encoding="utf-8"))["files"])
        aside = self._aside(rollback)
        for path in [*self._event_files(), *self._unfinished()]:
            name = str(path.relative_to(self.folder))
            if name not in before or (room / _aside_name(name)).exists():  # written since, or the kept part
                _park(path, room / "after" / _aside_name(name))
        for name in sorted(before):
            live = self.folder / name
            for source in (room / _aside_name(name), aside / name):
                if source.exists() and not live.exists():
                    _move(source, live)
        if aside.is_dir():
            for part in aside.rglob(f"*{_CUT}"):
                _park(part, room / "after" / _aside_name(str(part.relative_to(aside))))
        listing.rename(room / "files.restored.json")
        self._seen.clear()

    def _cut_file(self, path: Path, at: Anchor, room: Path, aside: Path) -> None:
        name = path.relative_to(self.folder)
        kept, cut = 0, 0
        with path.open("rb") as file:
            for event, keeps in _sorted_out(file, at):
                if event.tag is not None:
                    kept, cut = kept + keeps, cut + (not keeps)
        if not cut:
            return
        if not kept:
            _move(path, aside / name)
            return
        kept_path, cut_path = path.with_name(path.name.replace(_LOADED, _KEPT)), aside / f"{name}{_CUT}"
        half = room / f"{_aside_name(str(name))}.new"  # among what is not live: a crash leaves nothing there
        _copy(path, cut_path, half, at, lambda event, keeps: not keeps or event.tag is None)
        _copy(path, kept_path, half, at, lambda event, keeps: keeps or event.tag is None)
        self._finish(kept_path, room)

    def _finish(self, kept: Path, room: Path) -> None:
        """Original to the quarantine, kept part into its place. Taken up again at whichever of the two is missing."""
        live = kept.with_name(kept.name.replace(_KEPT, _LOADED))
        original = room / _aside_name(str(live.relative_to(self.folder)))
        if live.exists():
            _move(live, original)
        if original.exists():
            kept.rename(live)
            sync_folder(live.parent)

    def _last_step(self, path: Path) -> int:
        read, largest = self._seen.get(path, (0, 0))
        if path.stat().st_size < read:
            read, largest = 0, 0
        with path.open("rb") as file:
            file.seek(read)
            for event in read_events(file):
                read += len(event.record)
                if event.tag is not None and _axis(event.tag) == "global_step":
                    largest = max(largest, event.step)
        self._seen[path] = (read, largest)
        return largest

    def _event_files(self) -> Iterator[Path]:
        if self.folder.is_dir():
            yield from sorted(p for p in self.folder.rglob(f"*{_LOADED}*") if p.is_file() and not p.is_symlink())

    def _unfinished(self) -> Iterator[Path]:
        if self.folder.is_dir():
            yield from sorted(self.folder.rglob(f"*{_KEPT}*"))

    def _room(self, incident: str, rollback: str) -> Path:
        return self.folder.parent / ".sentinel-quarantine" / incident / rollback / f"{self.folder.name}-originals"

    def _aside(self, rollback: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}-{rollback}")


@dataclass(frozen=True, slots=True)
class _Axis:
    suffix: str
    field: str


_AXES = (_Axis(" vs samples", "consumed_samples"), _Axis(" vs tokens", "consumed_tokens"))
"""Megatron writes each scalar three times; the others' step is the iteration."""


def _axis(tag: str) -> str:
    return next((axis.field for axis in _AXES if tag.endswith(axis.suffix)), "global_step")


def _sorted_out(file: BinaryIO, at: Anchor) -> Iterator[tuple[Event, bool]]:
    """Each event, and whether it is at or before the cut on its own axis.

    Where the target's value on an axis is unknown, an event goes with the iteration that was written before it.
    """
    iteration = 0
    for event in read_events(file):
        axis = _axis(event.tag) if event.tag is not None else "global_step"
        if event.tag is not None and axis == "global_step":
            iteration = event.step
        limit = getattr(at, axis)
        yield event, (iteration <= at.global_step if limit is None else event.step <= limit)


def _copy(source: Path, destination: Path, half: Path, at: Anchor, wanted: Callable[[Event, bool], bool]) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    half.parent.mkdir(parents=True, exist_ok=True)
    with os_errors_named(half), source.open("rb") as file, half.open("wb") as copy:
        for event, keeps in _sorted_out(file, at):
            if wanted(event, keeps):
                copy.write(event.record)
        copy.flush()
        os.fsync(copy.fileno())
    half.rename(destination)
    sync_folder(destination.parent)


def _move(source: Path, destination: Path) -> None:
    if destination.exists():
        raise QuarantineError(f"{destination} is there already: {source} would overwrite it")
    destination.parent.mkdir(parents=True, exist_ok=True)
    source.rename(destination)
    sync_folder(destination.parent)
    sync_folder(source.parent)


def _park(path: Path, place: Path) -> None:
    """Moves it to the place, or beside what an earlier undo has put there."""
    free = (place.with_name(f"{place.name}.{n}") if n else place for n in itertools.count())
    _move(path, next(name for name in free if not name.exists()))


def _aside_name(name: str) -> str:
    return name.replace(_LOADED, _ASIDE)
