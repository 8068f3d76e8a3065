"""A run's TensorBoard folder: cut at the rollback's target, each tag on its own axis; nothing is deleted.

What is cut off stays readable as a run of its own beside the folder. The original of a file that spans the cut goes to
the quarantine, under a name that TensorBoard does not load. A file that is damaged or being written to is kept whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.adapters.event_files import Axis, Index, Side, Spans, part
from sentinel.durable import free_name, make_folders, move, sync_folder, write_atomically
from sentinel.processes import lived_at, writers_of
from sentinel.vocabulary.errors import LineError, QuarantineError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor

log = logging.getLogger(__name__)

_LOADED = "tfevents"  # TensorBoard loads files whose name contains this
_ASIDE = "tf-events"
_KEPT = ".sentinel-kept"
_PART = ".sentinel-part"  # being written: overwritten by the next cut when this one is killed
_CUT = ".cut-off"
_MOVED = "originals.json"
_RECORDS = frozenset(
    {_MOVED, "files.json", "files.restored.json", "kept-whole.json", "kept-whole.restored.json", "parted.json"}
)
ORIGINALS = "-originals"
_GROWS = "it is being written to"


@dataclass(slots=True, kw_only=True)
class CutReport:
    """What a cut did; files by their names in the folder."""

    cut: list[str] = field(default_factory=list)  # files that spanned the cut
    moved: list[str] = field(default_factory=list)  # files that lay wholly after it
    kept_whole: dict[str, str] = field(default_factory=dict)  # left as they are, with steps past the cut: why
    remarks: list[str] = field(default_factory=list)  # what else a person should know, as sentences

    def sentences(self) -> list[str]:
        """What a person should know; empty when the cut is complete."""
        return [f"{name} was not cut: {why}" for name, why in self.kept_whole.items()] + self.remarks


class TensorBoard:
    """The folder that the trainer's SummaryWriter writes to, with its subfolders."""

    def __init__(self, folder: Path, index: Path | None = None) -> None:
        self.folder = folder
        self._index = Index(index)

    def reach(self) -> tuple[int, int]:
        """Largest step of the live event files on the iteration axis, and on the samples axis (what DeepSpeed's own
        monitor writes has no iterations); 0 for none, maxsize while a cut is unfinished. Files that a cut has kept
        whole do not count: else the same cut would be planned again and again."""
        if any(self._matching(_KEPT)):
            return sys.maxsize, sys.maxsize
        kept_whole, read = self._kept_whole(), self._read()
        live = [spans for name, spans in read.items() if (name, spans.inode) not in kept_whole]
        step, samples = (max((s.last(axis) for s in live), default=0) for axis in (Axis.ITERATION, Axis.SAMPLES))
        return step, samples

    def last_step(self) -> int:
        """The step of `reach`."""
        return self.reach()[0]

    def last_samples(self) -> int:
        """The samples of `reach`."""
        return self.reach()[1]

    def git_work_tree(self) -> Path | None:
        """The git work tree that the folder lies in, None for none: something may commit and push what is moved."""
        folder = self.folder.resolve()
        return next((p for p in (folder, *folder.parents) if (p / ".git").exists()), None)

    def cut(self, at: Anchor, *, incident: str, rollback: str, parked: int | None = None) -> CutReport:
        """Cuts every event file at the target; takes a cut up again that was killed half-way. `parked`: the process of
        this machine that is parked: it lives, and has closed the files that its number is in the name of."""
        report = CutReport()
        if not self.folder.is_dir():
            return report
        room = self._room(incident, rollback)
        make_folders(room)
        listing = room / "files.json"
        if listing.exists() and _cut_elsewhere(listing, at):  # the same rollback has another target since
            self.restore(incident, rollback)
        if not listing.exists():
            names = [self._name(p) for p in self._event_files()]
            write_atomically(listing, dump_json({"files": names, "global_step": at.global_step}))
        writers = _writers(list(self._event_files()), parked)
        cutting = _Cutting(self.folder, at, room, self._aside(rollback), report, writers)
        for kept in list(self._matching(_KEPT)):
            cutting.finish(kept)
        for name, spans in self._read().items():
            cutting.cut_file(self.folder / name, spans)
        cutting.look_back()
        for path in self._matching(_LOADED):
            if path.is_symlink():
                report.kept_whole[self._name(path)] = "it is a link, and what it leads to may be another run's"
        kept_whole = {n: {"why": why, "inode": _inode(self.folder / n)} for n, why in report.kept_whole.items()}
        write_atomically(room / "kept-whole.json", dump_json({"files": kept_whole}))
        return report

    def moves_back(self, incident: str, rollback: str) -> Iterator[tuple[Path, Path]]:
        """The files that `restore` moves, in its order, as (from, to): first what was written since the cut."""
        room, aside = self._room(incident, rollback), self._aside(rollback)
        listing = room / "files.json"
        if not listing.exists():
            return
        names = bounded.read_record(listing, lambda data: list(data["files"]), QuarantineError)
        before, moved = {_below(name, listing) for name in names}, set[Path]()
        for path in [*self._event_files(), *self._matching(_KEPT)]:
            name = self._name(path)
            taken_out = (room / _aside_name(name)).exists() or (aside / name).exists()
            if name not in before or taken_out:  # written since, or the kept part
                moved.add(path)
                yield path, free_name(room / "after" / _aside_name(name))
        for name in sorted(before):
            for source in (room / _aside_name(name), aside / name):
                if source not in moved and source.exists():
                    yield source, self.folder / name

    def restore(self, incident: str, rollback: str) -> None:
        """Brings the files of before the cut back, byte for byte; what was written since is moved aside."""
        room = self._room(incident, rollback)
        listing = room / "files.json"
        if not listing.exists():
            return
        aside = self._aside(rollback)
        for source, destination in self.moves_back(incident, rollback):
            move(source, destination)
        _put_by(room, *self._matching(_PART), *aside.rglob(f"*{_PART}*"))  # of a cut that was killed
        if aside.is_dir():
            for cut_off in aside.rglob(f"*{_CUT}"):
                name = _aside_name(str(cut_off.relative_to(aside)))
                move(cut_off, free_name(room / "after" / name))
        if (kept_whole := room / "kept-whole.json").exists():
            kept_whole.rename(room / "kept-whole.restored.json")
        listing.rename(room / "files.restored.json")
        sync_folder(room)

    def _read(self) -> dict[str, Spans]:
        """How far each event file reaches, by its name; a file that went away meanwhile is none."""
        read = {}
        for path in self._event_files():
            with contextlib.suppress(FileNotFoundError):
                read[self._name(path)] = self._index.of(self._name(path), path)
        self._index.keep(set(read))
        return read

    def _kept_whole(self) -> set[tuple[str, int | None]]:
        """Names and inodes of the files that some cut has kept whole."""
        found: set[tuple[str, int | None]] = set()
        for room in (self.folder.parent / ".sentinel-quarantine").glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                try:
                    found |= bounded.read_record(
                        room / f"{self.folder.name}{ORIGINALS}" / "kept-whole.json",
                        lambda data: {(name, kept["inode"]) for name, kept in data["files"].items()},
                    )
                except LineError as error:  # then these files are looked at once more, and listed anew
                    log.warning("%s", error)
        return found

    def _event_files(self) -> Iterator[Path]:
        yield from (p for p in self._matching(_LOADED) if p.is_file() and not p.is_symlink())

    def _matching(self, part_of_name: str) -> Iterator[Path]:
        if self.folder.is_dir():
            yield from sorted(p for p in self.folder.rglob(f"*{part_of_name}*") if ".git" not in p.parts)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder))

    def _room(self, incident: str, rollback: str) -> Path:
        names = checked_name(incident, "incident"), checked_name(rollback, "rollback")
        room = (self.folder.parent / ".sentinel-quarantine").joinpath(*names, f"{self.folder.name}{ORIGINALS}")
        if link := next((path for path in (room, *room.parents[:3]) if path.is_symlink()), None):
            raise QuarantineError(f"{link} is a link: what is moved there could end anywhere")
        return room

    def _aside(self, rollback: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}-{checked_name(rollback, 'rollback')}")


@dataclass(frozen=True, slots=True)
class _Cutting:
    """One cut of a folder, file by file."""

    folder: Path
    at: Anchor
    room: Path
    aside: Path
    report: CutReport
    writers: Mapping[Path, str]  # files that a living process may still write to: why, as a sentence
    set_aside: dict[Path, int] = field(default_factory=dict)  # where a file taken out is now: bytes when it was read

    def cut_file(self, path: Path, spans: Spans) -> None:
        name, side, problem = str(path.relative_to(self.folder)), spans.side(self.at), spans.problem
        self.report.kept_whole.pop(name, None)  # a cut taken up may have given up on it
        unreadable = None if problem is None or problem.torn else problem.what
        if side is Side.UNKNOWN:
            self.report.kept_whole[name] = "its steps are no iterations, and what they are at the target is not known"
        elif side is not Side.BEFORE and (writer := self.writers.get(path)) is not None:
            self.report.kept_whole[name] = writer
        elif side is Side.AFTER and not spans.is_of(path.stat()):
            self.report.kept_whole[name] = _GROWS
        elif side is Side.AFTER:
            if unreadable:
                self.report.remarks.append(f"{name} was moved whole, with all that can be read of it: {unreadable}")
            move(path, self.aside / name)
            self.report.moved.append(name)
            self.set_aside[self.aside / name] = spans.size
        elif unreadable:
            self.report.kept_whole[name] = unreadable
        elif side is Side.STRADDLES:
            self._part(path, name, spans)

    def finish(self, kept: Path) -> None:
        """Original to the quarantine, kept part into its place; resumes at whichever of the two is missing."""
        live = kept.with_name(kept.name.replace(_KEPT, _LOADED))
        name = str(live.relative_to(self.folder))
        original, size = self.room / _aside_name(name), self._size_read(name)
        if live.exists():
            if (writer := self.writers.get(live)) is not None:  # since the cut that was killed
                _put_by(self.room, self.aside / f"{name}{_CUT}", kept)
                self.report.kept_whole[name] = writer
                return
            move(live, original)
        if not original.exists():
            return
        if size not in (None, original.stat().st_size):  # written to since it was read: the parts lack something
            move(original, live)
            _put_by(self.room, self.aside / f"{name}{_CUT}", kept)
            self.report.kept_whole[name] = _GROWS
            return
        self._remember(name, original)
        kept.rename(live)
        sync_folder(live.parent)
        self.report.cut.append(name)
        self.set_aside[original] = original.stat().st_size if size is None else size

    def _remember(self, name: str, original: Path) -> None:
        """What `purge` compares the original with."""
        record, status = self.room / _MOVED, original.stat()
        known = bounded.record_or({}, record, _moved, QuarantineError)
        known[_aside_name(name)] = status.st_size, status.st_mtime_ns
        write_atomically(record, dump_json({"files": known}))

    def look_back(self) -> None:
        """Reports the files that an unknown writer still wrote to after they were taken out of the folder."""
        for path, size in self.set_aside.items():
            if path.stat().st_size != size:
                self.report.remarks.append(f"{path} is still written to; what was cut or moved is missing none of it")

    def _part(self, path: Path, name: str, spans: Spans) -> None:
        kept = path.with_name(path.name.replace(_LOADED, _KEPT))
        cut_off = self.aside / f"{name}{_CUT}"
        kept_part, cut_part = (p.with_name(p.name.replace(_LOADED, _PART)) for p in (path, cut_off))
        make_folders(cut_off.parent)
        size, problem = part(path, self.at, spans, kept_part, cut_part)
        unreadable = None if problem is None or problem.torn else problem.what
        if unreadable or not spans.is_of(path.stat()):
            self.report.kept_whole[name] = unreadable or _GROWS
            _put_by(self.room, kept_part, cut_part)
            return
        if problem is not None:
            self.report.remarks.append(f"{name} was cut; {problem.what}, which went with what was cut off")
        write_atomically(self.room / "parted.json", dump_json({"name": name, "size": size}))
        for written, place in ((cut_part, cut_off), (kept_part, kept)):
            written.rename(place)
            sync_folder(place.parent)
        self.finish(kept)

    def _size_read(self, name: str) -> int | None:
        """The bytes of the file that the kept part was made from; None where that was not noted."""
        with contextlib.suppress(FileNotFoundError):
            return bounded.read_record(
                self.room / "parted.json",
                lambda data: int(data["size"]) if data["name"] == name else None,
                QuarantineError,
            )
        return None


def _cut_elsewhere(listing: Path, at: Anchor) -> bool:
    """Whether what is listed was cut at another step; an older release has not said at which."""
    step = bounded.read_record(listing, lambda data: data.get("global_step"), QuarantineError)
    return step is not None and step != at.global_step


def _writers(paths: Collection[Path], parked: int | None) -> dict[Path, str]:
    """Those of the event files that a living process of this machine may still write to, and why. One that flushes
    rarely shows in no change of the file for minutes."""
    found = {path: f"process {pid} has it open for writing" for path, pid in writers_of(paths).items()}
    here = re.escape(socket.gethostname())
    named = re.compile(rf"tfevents\.(?P<time>\d{{1,20}})\.{here}\.(?P<pid>\d{{1,10}})\.", re.ASCII)
    for path in paths:
        name = named.search(path.name)
        if path in found or name is None or int(name["pid"]) in (os.getpid(), parked):
            continue
        if lived_at(int(name["pid"]), float(name["time"])):
            found[path] = f"process {name['pid']}, which its name says wrote it, is alive"
    return found


def changed_originals(room: Path) -> Iterator[tuple[Path, str]]:
    """Originals of event files in the room INCIDENT/ROLLBACK that another process may have written to since they were
    moved there, each with why."""
    for folder in room.glob(f"*{ORIGINALS}"):
        originals = [path for path in folder.rglob(f"*{_ASIDE}*") if path.is_file()]
        moved, written = bounded.record_or({}, folder / _MOVED, _moved, QuarantineError), writers_of(originals)
        for path in originals:
            known, status = moved.get(str(path.relative_to(folder))), path.stat()
            if (pid := written.get(path)) is not None:
                yield path, f"process {pid} has it open for writing"
            elif known is not None and known != (status.st_size, status.st_mtime_ns):
                yield path, "another process has changed it since it was moved there"


def _moved(data: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Size, bytes, and time of the last change, ns, of each original when it was moved."""
    return {name: (int(size), int(mtime_ns)) for name, (size, mtime_ns) in data["files"].items()}


def foreign_entries(originals: Path) -> Iterator[Path]:
    """What is in a room's folder of originals and was not put there by a cut or an undo."""
    names = set(_RECORDS)
    for listing in (originals / "files.json", originals / "files.restored.json"):
        listed = bounded.record_or([], listing, lambda data: [*map(_aside_name, data["files"])], QuarantineError)
        names.update(listed)
    for path in originals.rglob("*"):
        name = str(path.relative_to(originals))
        if path.is_dir() and not path.is_symlink():
            continue
        if name not in names and name.partition("/")[0] not in ("after", "unused"):
            yield path


def _inode(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):  # another process moved it since
        return path.lstat().st_ino
    return None


def _below(name: object, listing: Path) -> str:
    """The name of a file below the folder, as the listing has it. QuarantineError where it leads out of it."""
    if not isinstance(name, str) or not name or name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise QuarantineError(f"{listing} names {str(name)[:60]!a}, which is no file below the folder")
    return name


def _put_by(room: Path, *parts: Path) -> None:
    """Moves away parts that are not to be used: sentinel's own copies, of which the last one is enough."""
    for written in parts:
        if written.exists():
            move(written, room / "unused" / _aside_name(written.name), overwrite=True)


def _aside_name(name: str) -> str:
    return name.replace(_LOADED, _ASIDE)
