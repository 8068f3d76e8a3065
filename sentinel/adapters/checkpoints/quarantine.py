"""Moving checkpoints aside and back, by renames within one filesystem. Never deletes, never overwrites."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import Named, recognise
from sentinel.adapters.checkpoints.trackers import TRACKERS
from sentinel.bounded import open_regular, read_document
from sentinel.durable import make_folders, sync_folder, write_atomically
from sentinel.vocabulary.errors import QuarantineError
from sentinel.vocabulary.names import why_not_a_name

__all__ = ["QUARANTINE", "Quarantine", "rename"]

QUARANTINE = ".sentinel-quarantine"

_LONGEST_TRACKER_BYTES = 4096


class Quarantine:
    """The place beside the checkpoints where a rollback's ones go; one room for each rollback of an incident."""

    def __init__(self, folder: Path, manifests: Path | None) -> None:
        self._folder, self._manifests = folder, manifests

    def take(self, tags: Sequence[str], incident: str, rollback: str) -> None:
        """Moves checkpoints in, each with its manifest; what is there already counts as moved."""
        room = self.room(incident, rollback)
        for tag in tags:
            if recognise(tag) is None:
                raise QuarantineError(f"{tag!r} is not the name of a checkpoint")
            source, destination = self._folder / tag, room / tag
            if os.path.lexists(source):
                if os.path.lexists(destination):
                    raise QuarantineError(f"{destination} is there already: {tag} would overwrite it")
                rename(source, destination)
            self._manifest_in(tag, room)
        sync_folder(room)
        sync_folder(self._folder)

    def tags(self, incident: str, rollback: str) -> tuple[str, ...]:
        """What this rollback has moved away, by step."""
        room = self._path(incident, rollback)
        if not room.is_dir():
            return ()
        found = [named for path in room.iterdir() if (named := recognise(path.name))]
        return tuple(named.tag for named in sorted(found, key=_order))

    def bring_back(self, incident: str, rollback: str) -> None:
        """Everything that a rollback moved, and the trackers as they were. Overwrites no checkpoint."""
        room = self._path(incident, rollback)
        for tag in self.tags(incident, rollback):
            if os.path.lexists(self._folder / tag):
                raise QuarantineError(
                    f"{self._folder / tag} is there again: the {tag} of {rollback} would overwrite it"
                )
            self._manifest_out(tag, room)
            rename(room / tag, self._folder / tag)
        self._trackers_back(room)
        if room.is_dir():
            sync_folder(room)
            sync_folder(self._folder)

    def incidents(self) -> frozenset[str]:
        """Names of the incidents' folders; none where there is no quarantine."""
        try:
            return frozenset(path.name for path in (self._folder / QUARANTINE).iterdir() if path.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()

    def room(self, incident: str, rollback: str) -> Path:
        """The rollback's own folder, made where there is none."""
        room = self._path(incident, rollback)
        make_folders(room)
        if room.stat().st_dev != self._folder.stat().st_dev:
            raise QuarantineError(f"{room} is on another filesystem than {self._folder}: a rename can't get there")
        return room

    def keep_trackers(self, room: Path) -> None:
        """Copies latest* aside, once: a rollback that is resumed must not take its own change for the original."""
        kept = room / "latest-before"
        if kept.is_dir():
            return
        unfinished = room / "latest-before.unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)  # our own copies of a few bytes, left by a crash
        unfinished.mkdir()
        for name in TRACKERS:
            if (self._folder / name).exists():
                write_atomically(unfinished / name, _content(self._folder / name))
        unfinished.rename(kept)
        sync_folder(room)

    def _path(self, incident: str, rollback: str) -> Path:
        for name in (incident, rollback):
            if (why := why_not_a_name(name)) is not None:
                raise QuarantineError(f"{name[:60]!a} can't name a folder of the quarantine: it {why}")
        room = self._folder / QUARANTINE / incident / rollback
        for path in (room, *room.parents[:2]):
            if path.is_symlink():
                raise QuarantineError(f"{path} is a link: what is moved there could end anywhere")
        return room

    def _trackers_back(self, room: Path) -> None:
        before = room / "latest-before"
        if not before.is_dir():
            return
        for name in TRACKERS:
            path = self._folder / name
            if (before / name).exists():
                write_atomically(path, _content(before / name))
            elif path.exists():
                path.rename(room / f"{name}.after")

    def _manifest_in(self, tag: str, room: Path) -> None:
        """A manifest goes where its checkpoint goes: another one will be saved under the same name."""
        if self._manifests is None or not (self._manifests / f"{tag}.json").is_file():
            return
        kept = room / "manifests"
        kept.mkdir(exist_ok=True)
        _carry(self._manifests / f"{tag}.json", kept / f"{tag}.json")

    def _manifest_out(self, tag: str, room: Path) -> None:
        kept = room / "manifests" / f"{tag}.json"
        if self._manifests is None or not kept.is_file():
            return
        there = self._manifests / f"{tag}.json"
        if there.exists():  # of the checkpoint that was saved since under this name, and moved away before this
            _carry(there, room / "manifests" / f"{tag}.after.json")
        _carry(kept, there)


def rename(source: Path, destination: Path) -> None:
    """Moves within one filesystem, or says why not. QuarantineError."""
    try:
        source.rename(destination)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise QuarantineError(f"{destination} is on another filesystem than {source}") from error
        raise


def _carry(source: Path, destination: Path) -> None:
    """Moves a manifest, perhaps to another filesystem: so it is written there first."""
    if destination.exists() and read_document(destination) != read_document(source):
        raise QuarantineError(f"{destination} is there already: another manifest would overwrite it")
    status = source.stat()
    write_atomically(destination, read_document(source))
    os.utime(destination, ns=(status.st_atime_ns, status.st_mtime_ns))  # it is of then: see verify
    source.unlink()  # it is whole on the disk at its new place
    sync_folder(source.parent)


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(_LONGEST_TRACKER_BYTES)


def _order(named: Named) -> tuple[int, bool, str]:
    return named.order
