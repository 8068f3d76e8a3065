"""A probe's files: the checkpoint that it begins from, which is its own.

What a probe's trainer writes must never reach the run's files. A trainer that saves the step again that it resumed from
opens the same files anew, and would write through a hard or a symbolic link. So the first probe copies the checkpoint
(without new blocks where the filesystem shares them), and each probe gets links to that copy. A copy that a probe has
changed is made again, unless the run has replaced the checkpoint meanwhile: TAG.copied beside it says what was copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from sentinel.adapters.checkpoints.entries import checkpoint_named, names_of, walk_checkpoint
from sentinel.adapters.checkpoints.folder import Checkpoints, room_for
from sentinel.adapters.checkpoints.layouts import TRACKERS, Named, recognise
from sentinel.adapters.checkpoints.walk import Contents, mirrored, walk
from sentinel.bounded import record_or
from sentinel.durable import (
    copy_file,
    link_or_copy,
    make_folders,
    os_errors_named,
    sync_folder,
    write_atomically,
)
from sentinel.vocabulary.errors import CheckpointError
from sentinel.vocabulary.numbers import dump_json


def place_checkpoint(run: Path, tag: str | None, copies: Path, destination: Path) -> None:
    """Makes `destination` a checkpoints folder that a trainer resumes from at the tag of the run's folder; None is
    from scratch. `copies` is a folder on the same filesystem as `destination`. CheckpointError."""
    with os_errors_named(destination):
        make_folders(destination)
        if tag is None:
            return
        named = checkpoint_named(tag, CheckpointError)
        copied = _copied(run, named, copies)
        mirrored(copied, destination if names_of(copied.root, named) else destination / tag, _link_once)
        for name in TRACKERS:
            if (run / name).is_file():
                (destination / name).touch()  # `point_latest` writes those that are there
        Checkpoints(destination).point_latest(tag, named.global_step, incident="probe", rollback="probe")


def check_placeable(run: Path, tag: str | None, copies: Path) -> None:
    """CheckpointError where `place_checkpoint` could not be made of it now; writes nothing."""
    named = recognise(tag) if tag is not None else None
    if named is not None and (source := _to_copy(run, named, copies)) is not None:
        _check_room(named, source, copies)


def _to_copy(run: Path, named: Named, copies: Path) -> Contents | None:
    """The run's checkpoint; None where its copy is whole: that is all that is looked at then, since after a rollback
    the run's own may be gone, or another one of the same name."""
    copy = copies / named.tag
    copied = record_or(None, _note_of(copy), lambda read: list(read["files"]), CheckpointError)
    if copied is not None and copy.is_dir() and _alike(walk(copy)) == copied:
        return None
    source, in_folder = walk_checkpoint(run, named), not named.layout.in_files
    if not source.files and (not in_folder or not os.path.lexists(run / named.tag)):
        raise CheckpointError(f"{run} has no checkpoint {named.tag!r} to begin a probe from")
    if source.refusal is not None or not source.files:
        why = source.refusal or "it is empty"
        raise CheckpointError(f"{named.tag} of {run} can't be copied for a probe: {why}")
    if copied is not None and _alike(source) != copied:
        raise CheckpointError(
            f"a probe has changed the copy of {named.tag}, and the run has another {named.tag} by now: delete "
            f"{copies.parent} to begin anew"
        )
    return source


def _check_room(named: Named, source: Contents, copies: Path) -> None:
    there = next(folder for folder in (copies, *copies.parents) if folder.is_dir())
    if (problem := room_for(there, source.size_bytes, len(source.files)).problem) is not None:
        raise CheckpointError(f"{named.tag} can't be copied for a probe: {problem}; [bisect] folder can name another")


def _copied(run: Path, named: Named, copies: Path) -> Contents:
    """The copy of the checkpoint."""
    copy, unfinished = copies / named.tag, copies / f".{named.tag}.unfinished"
    if (source := _to_copy(run, named, copies)) is None:
        return walk(copy)
    for old in (copy, unfinished):
        if old.exists():
            shutil.rmtree(old)  # sentinel's own copy, cut short or changed by a probe
    make_folders(copies)
    _check_room(named, source, copies)
    changed = CheckpointError(f"{named.tag} of {run} changed while it was copied for a probe")
    try:
        mirrored(source, unfinished, copy_file)
    except FileNotFoundError as error:
        raise changed from error
    if (files := _alike(walk(unfinished))) != _alike(walk_checkpoint(run, named)):
        raise changed
    write_atomically(_note_of(copy), dump_json({"files": files}))
    unfinished.rename(copy)
    sync_folder(copies)
    return walk(copy)


def _note_of(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.copied")


def _alike(contents: Contents) -> list[list[str | int]]:
    return [[item.name, item.size_bytes, item.mtime_ns] for item in contents.files]


def _link_once(source: Path, destination: Path) -> None:
    with contextlib.suppress(FileExistsError):
        link_or_copy(source, destination)
