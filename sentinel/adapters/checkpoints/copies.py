"""A probe's own checkpoint: what a probe's trainer writes must never reach the run's files.

A trainer that saves the step again that it resumed from opens the same files anew, and would write through a hard or a
symbolic link. So the first probe copies the checkpoint (without new blocks where the filesystem shares them: XFS,
Btrfs, NFS 4.2), and each probe gets links to that copy. A copy that a probe has changed is made again, unless the run
has replaced the checkpoint meanwhile: TAG.copied beside the copy says what was copied.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sentinel.adapters.checkpoints.folder import Checkpoints, room_for
from sentinel.adapters.checkpoints.layouts import Named, recognise
from sentinel.adapters.checkpoints.places import walk_checkpoint
from sentinel.adapters.checkpoints.walk import Contents, Item, walk
from sentinel.bounded import read_record
from sentinel.durable import make_folders, os_errors_named, sync_folder, write_atomically
from sentinel.vocabulary.errors import CheckpointError
from sentinel.vocabulary.numbers import dump_json

_TRACKERS = ("latest", "latest_checkpointed_iteration.txt")
_CHUNK_BYTES = 1 << 30


def place_checkpoint(run: Path, tag: str | None, copies: Path, destination: Path) -> None:
    """Makes `destination` a checkpoints folder that a trainer resumes from at the tag of the run's folder; None is
    from scratch. `copies` is a folder on the same filesystem as `destination`. CheckpointError."""
    with os_errors_named(destination):
        make_folders(destination)
        if tag is None:
            return
        named = recognise(tag)
        if named is None or named.tag != tag:
            raise CheckpointError(f"{tag!r} is not the name of a checkpoint")
        copy, in_folder = _copied(run, named, copies)
        _linked(copy, destination / tag if in_folder else destination)
        for name in _TRACKERS:
            if (run / name).is_file():
                (destination / name).touch()  # `point_latest` writes those that are there
        Checkpoints(destination).point_latest(tag, named.global_step, incident="probe", rollback="probe")


def check_placeable(run: Path, tag: str | None, copies: Path) -> None:
    """CheckpointError where `place_checkpoint` could not be made of it now; writes nothing."""
    named = recognise(tag) if tag is not None else None
    if named is not None and _whole_copy(named, copies) is None:
        _check_room(named, _source(run, named, copies), copies)


def _whole_copy(named: Named, copies: Path) -> Contents | None:
    """A copy that is whole is all that is looked at: after a rollback the run's checkpoint may be gone, or another one
    of the same name."""
    copy, copied = copies / named.tag, _noted(named, copies)
    if copied is None or not copy.is_dir():
        return None
    contents = walk(copy)
    return contents if _alike(contents.files) == copied else None


def _noted(named: Named, copies: Path) -> list[list[str | int]] | None:
    note = copies / f"{named.tag}.copied"
    return read_record(note, lambda read: list(read["files"]), CheckpointError) if note.exists() else None


def _source(run: Path, named: Named, copies: Path) -> Contents:
    """The run's checkpoint, which can be copied."""
    source, in_folder, copied = walk_checkpoint(run, named), not named.layout.in_files, _noted(named, copies)
    if not source.files and (not in_folder or not os.path.lexists(run / named.tag)):
        raise CheckpointError(f"{run} has no checkpoint {named.tag!r} to begin a probe from")
    if source.refusal is not None or not source.files:
        why = source.refusal or "it is empty"
        raise CheckpointError(f"{named.tag} of {run} can't be copied for a probe: {why}")
    if copied is not None and _alike(source.files) != copied:
        raise CheckpointError(
            f"a probe has changed the copy of {named.tag}, and the run has another {named.tag} by now: delete "
            f"{copies.parent} to begin anew"
        )
    return source


def _check_room(named: Named, source: Contents, copies: Path) -> None:
    there = next(folder for folder in (copies, *copies.parents) if folder.is_dir())
    if (problem := room_for(there, source.size_bytes, len(source.files)).problem) is not None:
        raise CheckpointError(f"{named.tag} can't be copied for a probe: {problem}; [bisect] folder can name another")


def _copied(run: Path, named: Named, copies: Path) -> tuple[Contents, bool]:
    """The copy of the checkpoint, and whether it is a folder in the run's folder."""
    copy, note, in_folder = copies / named.tag, copies / f"{named.tag}.copied", not named.layout.in_files
    if (whole := _whole_copy(named, copies)) is not None:
        return whole, in_folder
    source = _source(run, named, copies)
    unfinished = copies / f".{named.tag}.unfinished"
    for old in (copy, unfinished):
        if old.exists():
            shutil.rmtree(old)  # sentinel's own copy, cut short or changed by a probe
    make_folders(copies)
    _check_room(named, source, copies)
    unfinished.mkdir()
    for folder in sorted(source.folders):
        (unfinished / folder).mkdir()
    changed = CheckpointError(f"{named.tag} of {run} changed while it was copied for a probe")
    for item in source.files:
        try:
            _copy(source.root / item.name, unfinished / item.name)
        except FileNotFoundError as error:
            raise changed from error
    if (files := _alike(walk(unfinished).files)) != _alike(walk_checkpoint(run, named).files):
        raise changed
    write_atomically(note, dump_json({"files": files}))
    unfinished.rename(copy)
    sync_folder(copies)
    return walk(copy), in_folder


def _alike(files: Sequence[Item]) -> list[list[str | int]]:
    return [[item.name, item.size_bytes, item.mtime_ns] for item in files]


def _copy(source: Path, destination: Path) -> None:
    """With its times, by which a changed copy is told."""
    with source.open("rb") as read, destination.open("xb") as written:
        left = os.fstat(read.fileno()).st_size
        try:
            while left and (done := os.copy_file_range(read.fileno(), written.fileno(), min(left, _CHUNK_BYTES))):
                left -= done
        except OSError:  # across filesystems on an older kernel, or one that has no such call
            read.seek(0)
            written.seek(0)
            shutil.copyfileobj(read, written)
        written.flush()
        os.fsync(written.fileno())
    shutil.copystat(source, destination)


def _linked(copy: Contents, destination: Path) -> None:
    make_folders(destination)
    for folder in sorted(copy.folders):
        (destination / folder).mkdir(exist_ok=True)
    for item in copy.files:
        try:
            (destination / item.name).hardlink_to(copy.root / item.name)
        except FileExistsError:
            continue
        except OSError:  # a filesystem without hard links
            _copy(copy.root / item.name, destination / item.name)
