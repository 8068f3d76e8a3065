"""A probe's files: the checkpoint that it begins from, which is its own, and what becomes the run's when it has won.

What a probe's trainer writes must never reach the run's files. A trainer that saves the step again that it resumed from
opens the same files anew, and would write through a hard or a symbolic link. So the first probe copies the checkpoint
(without new blocks where the filesystem shares them), and each probe gets links to that copy. A copy that a probe has
changed is made again, unless the run has replaced the checkpoint meanwhile: TAG.copied beside it says what was copied.

An adoption makes the run's, each once: event files and journal by links, checkpoints by renames. The rollback's room in
the quarantine holds a note from before the first change on, which says when all is done. What is taken up again does
what is missing; undo takes the files as those of any restart (`quarantine`, `tensorboard`).
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentinel.adapters.checkpoints.folder import Checkpoints, room_for
from sentinel.adapters.checkpoints.layouts import Named, recognise
from sentinel.adapters.checkpoints.quarantine import ADOPTION, QUARANTINE, Quarantine, room_in
from sentinel.adapters.checkpoints.walk import (
    Contents,
    Item,
    checkpoint_named,
    checkpoints_in,
    entries_of,
    walk,
    walk_checkpoint,
)
from sentinel.bounded import read_record, record_or
from sentinel.durable import (
    copy_file,
    link_or_copy,
    make_folders,
    os_errors_named,
    rename,
    sync_folder,
    write_atomically,
)
from sentinel.vocabulary.errors import CheckpointError, QuarantineError
from sentinel.vocabulary.numbers import dump_json

_EVENTS = "tfevents"
_TRACKERS = ("latest", "latest_checkpointed_iteration.txt")


def place_checkpoint(run: Path, tag: str | None, copies: Path, destination: Path) -> None:
    """Makes `destination` a checkpoints folder that a trainer resumes from at the tag of the run's folder; None is
    from scratch. `copies` is a folder on the same filesystem as `destination`. CheckpointError."""
    with os_errors_named(destination):
        make_folders(destination)
        if tag is None:
            return
        named = checkpoint_named(tag, CheckpointError)
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
            copy_file(source.root / item.name, unfinished / item.name)
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


def _linked(copy: Contents, destination: Path) -> None:
    make_folders(destination)
    for folder in sorted(copy.folders):
        (destination / folder).mkdir(exist_ok=True)
    for item in copy.files:
        with contextlib.suppress(FileExistsError):
            link_or_copy(copy.root / item.name, destination / item.name)


class Adoptions:
    """Of one run's checkpoints folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._quarantine = folder, Quarantine(folder, None)

    def done(self, incident: str, rollback: str) -> bool | None:
        """Whether the rollback's adoption is complete; None where it was not begun, or was taken back."""
        note = room_in(self._folder / QUARANTINE, incident, rollback) / ADOPTION
        return record_or(None, note, lambda data: bool(data["done"]), QuarantineError)

    def adopt(
        self, checkpoints: Path, after_step: int, tag: str, files: Mapping[Path, Path], *, incident: str, rollback: str
    ) -> None:
        """`checkpoints`: the probe's folder, of which those after the step are adopted, with `tag` its last; `files`:
        its event files and its journal, each with its place in the run. Overwrites nothing: QuarantineError."""
        room = self._quarantine.room(incident, rollback)
        if self.done(incident, rollback) is None:
            if all(named.tag != tag for named in checkpoints_in(checkpoints)):
                raise QuarantineError(f"{checkpoints} has no {tag} any more: nothing of the probe was adopted")
            made = [str(destination) for destination in files.values()]
            write_atomically(room / ADOPTION, dump_json({"from": str(checkpoints), "done": False, "files": made}))
        for source, destination in files.items():
            _give(source, destination)
        for named in checkpoints_in(checkpoints):
            if named.global_step <= after_step:
                continue
            for entry in entries_of(checkpoints, named):
                if os.path.lexists(self._folder / entry):
                    raise QuarantineError(
                        f"{self._folder / entry} is there already: {checkpoints / entry} is not moved"
                    )
                rename(checkpoints / entry, self._folder / entry)
        sync_folder(self._folder)
        sync_folder(checkpoints)
        write_atomically(room / ADOPTION, dump_json({"from": str(checkpoints), "done": True}))


def event_files(folder: Path, destination: Path) -> dict[Path, Path]:
    """A probe's TensorBoard files, each with its place in the run's folder."""
    found = sorted(path for path in folder.rglob(f"*{_EVENTS}*") if path.is_file() and not path.is_symlink())
    return {path: destination / path.relative_to(folder) for path in found}


def journals_of(attempts: Path, destination: Path) -> dict[Path, Path]:
    """A probe's journals, each with its place in the run; most are the run's own already."""
    return {path: destination / path.name for path in sorted(attempts.glob("*.jsonl"))}


def _give(source: Path, destination: Path) -> None:
    """A second name of the file; a copy where the filesystem has none, or is another one."""
    if os.path.lexists(destination):
        if destination.is_symlink() or not _same(source, destination):
            raise QuarantineError(f"{destination} is there already: {source} would overwrite it")
        return
    make_folders(destination.parent)
    link_or_copy(source, destination)
    sync_folder(destination.parent)


def _same(one: Path, other: Path) -> bool:
    return one.samefile(other) or filecmp.cmp(one, other, shallow=False)
