"""Moving checkpoints aside and back, by renames within one filesystem; nothing is overwritten. `purge`, which a person
has to type, is the only deletion."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import recognise
from sentinel.adapters.checkpoints.trackers import Trackers, is_tracker
from sentinel.adapters.checkpoints.walk import checkpoint_named, checkpoints_in, entries_of
from sentinel.bounded import read_document, read_record
from sentinel.durable import make_folders, part_of, rename, sync_folder, write_atomically
from sentinel.plan.incident.incident import Rollback
from sentinel.vocabulary.errors import QuarantineError
from sentinel.vocabulary.names import why_not_a_name

QUARANTINE = ".sentinel-quarantine"
_GIVEN = "adoption.json"
"""In a rollback's room, of an older release: the files of a probe that it made the run's, or was about to."""
UNDONE = "-undone"
"""Behind a rollback's id, the room of what its undo moves aside; no undo brings that back."""


class Quarantine:
    """The folder beside the checkpoints for what rollbacks move aside; one room for each rollback of an incident."""

    def __init__(self, folder: Path, manifests: Path | None) -> None:
        self._folder, self._manifests = folder, manifests

    def take(self, tags: Sequence[str], incident: str, rollback: str) -> None:
        """Moves checkpoints in, each with its manifest; what is there already counts as moved."""
        room = self.room(incident, rollback)
        for tag in tags:
            for entry in entries_of(self._folder, checkpoint_named(tag)):
                if os.path.lexists(room / entry):
                    raise QuarantineError(f"{room / entry} is there already: {entry} would overwrite it")
                rename(self._folder / entry, room / entry)
            if self._manifests is not None and (manifest := self._manifests / f"{tag}.json").is_file():
                (room / "manifests").mkdir(exist_ok=True)  # another checkpoint will be saved under the same name
                _carry(manifest, room / "manifests" / manifest.name)
        sync_folder(room)
        sync_folder(self._folder)

    def tags(self, incident: str, rollback: str) -> tuple[str, ...]:
        """What this rollback has moved away, by step."""
        return tags_in(self._path(incident, rollback))

    def bring_back(self, incident: str, rollback: str) -> None:
        """Everything that a rollback moved, and the trackers as they were. Overwrites no checkpoint."""
        room = self._path(incident, rollback)
        for named in checkpoints_in(room):
            tag, entries = named.tag, entries_of(room, named)
            for destination in (self._folder / entry for entry in entries):
                if os.path.lexists(destination):
                    raise QuarantineError(f"{destination} is there again: the {tag} of {rollback} would overwrite it")
            kept = room / "manifests" / f"{tag}.json"
            if self._manifests is not None and kept.is_file():
                there = self._manifests / kept.name
                if there.exists():  # of the checkpoint saved since under this name, and moved away before this
                    _carry(there, kept.with_name(f"{tag}.after.json"))
                _carry(kept, there)
            for entry in entries:
                rename(room / entry, self._folder / entry)
        Trackers(self._folder).bring_back(room)
        if (note := room / _GIVEN).exists():
            for made in read_record(note, lambda data: list(data.get("files", ())), QuarantineError):
                part_of(Path(made)).unlink(missing_ok=True)  # sentinel's own copy, that a crash has cut short
            note.rename(room / f"{_GIVEN}.undone")
        if room.is_dir():
            sync_folder(room)
            sync_folder(self._folder)

    def room(self, incident: str, rollback: str) -> Path:
        """The rollback's own folder, made where there is none."""
        room = self._path(incident, rollback)
        make_folders(room)
        if room.stat().st_dev != self._folder.stat().st_dev:
            raise QuarantineError(f"{room} is on another filesystem than {self._folder}: a rename can't get there")
        return room

    def _path(self, incident: str, rollback: str) -> Path:
        return room_in(self._folder / QUARANTINE, incident, rollback)


def room_in(quarantine: Path, incident: str, rollback: str) -> Path:
    """INCIDENT/ROLLBACK below the folder; QuarantineError where these are no names, or one of the three is a link."""
    for name in (incident, rollback):
        if (why := why_not_a_name(name)) is not None:
            raise QuarantineError(f"{name[:60]!a} can't name a folder of the quarantine: it {why}")
    room = quarantine / incident / rollback
    for path in (room, *room.parents[:2]):
        if path.is_symlink():
            raise QuarantineError(f"{path} is a link: what is moved there could end anywhere")
    return room


def tags_in(folder: Path) -> tuple[str, ...]:
    """The checkpoints in the folder, by step; none where it is not there."""
    return tuple(named.tag for named in checkpoints_in(folder))


def _carry(source: Path, destination: Path) -> None:
    """Moves a manifest, perhaps to another filesystem: so it is written there first."""
    if destination.exists() and read_document(destination) != read_document(source):
        raise QuarantineError(f"{destination} is there already: another manifest would overwrite it")
    status = source.stat()
    write_atomically(destination, read_document(source))
    os.utime(destination, ns=(status.st_atime_ns, status.st_mtime_ns))  # `verify` compares the times
    source.unlink()  # it is whole on the disk at its new place
    sync_folder(source.parent)


_GOING = ".purging"
_RACE, _PROBE = "race", re.compile(r".+-p\d+")  # the folders of an older release's probes, and one of them
_BOOKKEEPING = frozenset({"manifests", "latest-before", "latest-before.unfinished", _GIVEN, f"{_GIVEN}.undone"})
_BOOKKEPT = re.compile(r"(?P<name>.+)\.(?:taken-away|after)(?:\.\d+)?")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.new")


def foreign_entries(room: Path, rollbacks: Sequence[Rollback], kept_by_others: str) -> Iterator[Path]:
    """What is in an incident's quarantine folder and was not put there by its rollbacks, their undo or its probes.
    Folders of a rollback's room that end with `kept_by_others` are for another adapter to look through."""
    known = {rollback.id: rollback for rollback in rollbacks}
    for path in sorted(room.iterdir()) if room.is_dir() and not room.is_symlink() else ():
        rollback = known.get(re.sub(rf"{UNDONE}(-\d+)?$", "", path.name))
        if path.name == _RACE and path.is_dir() and not path.is_symlink():
            yield from (probe for probe in sorted(path.iterdir()) if not _PROBE.fullmatch(probe.name))
        elif path.is_symlink() or not path.is_dir() or rollback is None:
            yield path
        else:
            for entry in sorted(path.iterdir()):
                is_others = entry.name.endswith(kept_by_others) and entry.is_dir() and not entry.is_symlink()
                if not (is_others or _is_own(entry.name) or _may_have_moved(rollback, entry.name)):
                    yield entry


def _is_own(name: str) -> bool:
    """Whether that is sentinel's own entry of a rollback's room, or a tracker that it took away."""
    if name in _BOOKKEEPING or _TEMPORARY.fullmatch(name):
        return True
    kept = _BOOKKEPT.fullmatch(name)
    return kept is not None and is_tracker(kept["name"])


def _may_have_moved(rollback: Rollback, name: str) -> bool:
    """Whether that is a checkpoint that the rollback or its undo moves: one of its plan, or one after its target."""
    named = recognise(name)
    return named is not None and (
        named.global_step > rollback.target_step or named.tag in rollback.moved_tags or rollback.probe is not None
    )


def size_of(room: Path) -> tuple[int, int]:
    """Files and bytes under a quarantine folder, what an earlier purge left of it included."""
    sizes = [path.lstat().st_size for folder in _rooms(room) for path in folder.rglob("*") if not path.is_dir()]
    return len(sizes), sum(sizes)


def purge(room: Path) -> None:
    """Deletes a quarantine folder: first by a rename, so that one cut short is not taken for a whole quarantine.
    QuarantineError when it is a link: what it leads to is not ours to delete."""
    if room.is_symlink():
        raise QuarantineError(f"{room} is a link: what it leads to is not deleted")
    if room.is_dir():
        room.rename(room.with_name(f"{room.name}{_GOING}"))
        sync_folder(room.parent)
    for folder in _rooms(room):
        shutil.rmtree(folder)


def _rooms(room: Path) -> Iterator[Path]:
    for folder in (room, room.with_name(f"{room.name}{_GOING}")):
        if folder.is_dir() and not folder.is_symlink():
            yield folder
