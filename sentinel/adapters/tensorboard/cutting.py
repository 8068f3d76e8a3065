"""One cut of a TensorBoard folder, file by file: what lies after the target goes beside the folder, and the original of
a file that spans it to the quarantine. Each step is taken up where a kill has ended it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.adapters.event_files import Side, Spans, part
from sentinel.durable import make_folders, move, sync_folder, write_atomically
from sentinel.processes import lived_at, writers_of
from sentinel.vocabulary.errors import QuarantineError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor

LOADED = "tfevents"  # TensorBoard loads files whose name contains this
ASIDE = "tf-events"
KEPT = ".sentinel-kept"
PART = ".sentinel-part"  # being written: overwritten by the next cut when this one is killed
CUT = ".cut-off"
MOVED = "originals.json"
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


@dataclass(frozen=True, slots=True)
class Cutting:
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
        live = kept.with_name(kept.name.replace(KEPT, LOADED))
        name = str(live.relative_to(self.folder))
        original, size = self.room / aside_name(name), self._size_read(name)
        if live.exists():
            if (writer := self.writers.get(live)) is not None:  # since the cut that was killed
                put_by(self.room, self.aside / f"{name}{CUT}", kept)
                self.report.kept_whole[name] = writer
                return
            move(live, original)
        if not original.exists():
            return
        if size not in (None, original.stat().st_size):  # written to since it was read: the parts lack something
            move(original, live)
            put_by(self.room, self.aside / f"{name}{CUT}", kept)
            self.report.kept_whole[name] = _GROWS
            return
        self._remember(name, original)
        kept.rename(live)
        sync_folder(live.parent)
        self.report.cut.append(name)
        self.set_aside[original] = original.stat().st_size if size is None else size

    def _remember(self, name: str, original: Path) -> None:
        """What `purge` compares the original with."""
        record, status = self.room / MOVED, original.stat()
        known = bounded.record_or({}, record, moved_originals, QuarantineError)
        known[aside_name(name)] = status.st_size, status.st_mtime_ns
        write_atomically(record, dump_json({"files": known}))

    def look_back(self) -> None:
        """Reports the files that an unknown writer still wrote to after they were taken out of the folder."""
        for path, size in self.set_aside.items():
            if path.stat().st_size != size:
                self.report.remarks.append(f"{path} is still written to; what was cut or moved is missing none of it")

    def _part(self, path: Path, name: str, spans: Spans) -> None:
        kept = path.with_name(path.name.replace(LOADED, KEPT))
        cut_off = self.aside / f"{name}{CUT}"
        kept_part, cut_part = (p.with_name(p.name.replace(LOADED, PART)) for p in (path, cut_off))
        make_folders(cut_off.parent)
        size, problem = part(path, self.at, spans, kept_part, cut_part)
        unreadable = None if problem is None or problem.torn else problem.what
        if unreadable or not spans.is_of(path.stat()):
            self.report.kept_whole[name] = unreadable or _GROWS
            put_by(self.room, kept_part, cut_part)
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


def writers_alive(paths: Collection[Path], parked: int | None) -> dict[Path, str]:
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


def moved_originals(data: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Size, bytes, and time of the last change, ns, of each original when it was moved."""
    return {name: (int(size), int(mtime_ns)) for name, (size, mtime_ns) in data["files"].items()}


def put_by(room: Path, *parts: Path) -> None:
    """Moves away parts that are not to be used: sentinel's own copies, of which the last one is enough."""
    for written in parts:
        if written.exists():
            move(written, room / "unused" / aside_name(written.name), overwrite=True)


def aside_name(name: str) -> str:
    return name.replace(LOADED, ASIDE)
