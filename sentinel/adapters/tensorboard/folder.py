"""A run's TensorBoard folder: cut at the rollback's target, each tag on its own axis; nothing is deleted.

What is cut off stays readable as a run of its own beside the folder. The original of a file that spans the cut goes to
the quarantine, under a name that TensorBoard does not load. A file that is damaged or being written to is kept whole.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.event_files import Axis, Index, Spans
from sentinel.adapters.tensorboard.cutting import (
    ASIDE,
    CUT,
    KEPT,
    LOADED,
    MOVED,
    PART,
    CutReport,
    Cutting,
    aside_name,
    moved_originals,
    put_by,
    writers_alive,
)
from sentinel.durable import free_name, make_folders, move, sync_folder, write_atomically
from sentinel.processes import writers_of
from sentinel.vocabulary.errors import LineError, QuarantineError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor

log = logging.getLogger(__name__)

_RECORDS = frozenset(
    {MOVED, "files.json", "files.restored.json", "kept-whole.json", "kept-whole.restored.json", "parted.json"}
)
ORIGINALS = "-originals"


class TensorBoard:
    """The folder that the trainer's SummaryWriter writes to, with its subfolders."""

    def __init__(self, folder: Path, index: Path | None = None) -> None:
        self.folder = folder
        self._index = Index(index)

    def reach(self) -> tuple[int, int]:
        """Largest step of the live event files on the iteration axis, and on the samples axis (what DeepSpeed's own
        monitor writes has no iterations); 0 for none, maxsize while a cut is unfinished. Files that a cut has kept
        whole do not count: else the same cut would be planned again and again."""
        if any(self._matching(KEPT)):
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
        writers = writers_alive(list(self._event_files()), parked)
        cutting = Cutting(self.folder, at, room, self._aside(rollback), report, writers)
        for kept in list(self._matching(KEPT)):
            cutting.finish(kept)
        for name, spans in self._read().items():
            cutting.cut_file(self.folder / name, spans)
        cutting.look_back()
        for path in self._matching(LOADED):
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
        for path in [*self._event_files(), *self._matching(KEPT)]:
            name = self._name(path)
            taken_out = (room / aside_name(name)).exists() or (aside / name).exists()
            if name not in before or taken_out:  # written since, or the kept part
                moved.add(path)
                yield path, free_name(room / "after" / aside_name(name))
        for name in sorted(before):
            for source in (room / aside_name(name), aside / name):
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
        put_by(room, *self._matching(PART), *aside.rglob(f"*{PART}*"))  # of a cut that was killed
        if aside.is_dir():
            for cut_off in aside.rglob(f"*{CUT}"):
                name = aside_name(str(cut_off.relative_to(aside)))
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
        yield from (p for p in self._matching(LOADED) if p.is_file() and not p.is_symlink())

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


def _cut_elsewhere(listing: Path, at: Anchor) -> bool:
    """Whether what is listed was cut at another step; an older release has not said at which."""
    step = bounded.read_record(listing, lambda data: data.get("global_step"), QuarantineError)
    return step is not None and step != at.global_step


def changed_originals(room: Path) -> Iterator[tuple[Path, str]]:
    """Originals of event files in the room INCIDENT/ROLLBACK that another process may have written to since they were
    moved there, each with why."""
    for folder in room.glob(f"*{ORIGINALS}"):
        originals = [path for path in folder.rglob(f"*{ASIDE}*") if path.is_file()]
        moved, written = bounded.record_or({}, folder / MOVED, moved_originals, QuarantineError), writers_of(originals)
        for path in originals:
            known, status = moved.get(str(path.relative_to(folder))), path.stat()
            if (pid := written.get(path)) is not None:
                yield path, f"process {pid} has it open for writing"
            elif known is not None and known != (status.st_size, status.st_mtime_ns):
                yield path, "another process has changed it since it was moved there"


def foreign_entries(originals: Path) -> Iterator[Path]:
    """What is in a room's folder of originals and was not put there by a cut or an undo."""
    names = set(_RECORDS)
    for listing in (originals / "files.json", originals / "files.restored.json"):
        listed = bounded.record_or([], listing, lambda data: [*map(aside_name, data["files"])], QuarantineError)
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
