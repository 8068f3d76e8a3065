"""Making what a probe has written the run's: event files and journal by links, its checkpoints by renames, each once.

The rollback's room in the quarantine holds a note from before the first change on, which says when all is done. What is
taken up again does what is missing; undo takes the files as those of any restart (`quarantine`, `tensorboard`).
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.checkpoints.places import checkpoints_in, entries_of
from sentinel.adapters.checkpoints.quarantine import ADOPTION, Quarantine, rename
from sentinel.durable import make_folders, sync_folder, write_atomically
from sentinel.vocabulary.errors import QuarantineError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json

_EVENTS = "tfevents"
_PART = ".sentinel-adopting"


class Adoptions:
    """Of one run's checkpoints folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._quarantine = folder, Quarantine(folder, None)

    def done(self, incident: str, rollback: str) -> bool | None:
        """Whether the rollback's adoption is complete; None where it was not begun, or was taken back."""
        names = checked_name(incident, "incident"), checked_name(rollback, "rollback")
        note = self._folder.joinpath(".sentinel-quarantine", *names, ADOPTION)
        return bounded.record_or(None, note, lambda data: bool(data["done"]), QuarantineError)

    def adopt(
        self, checkpoints: Path, after_step: int, tag: str, files: Mapping[Path, Path], *, incident: str, rollback: str
    ) -> None:
        """`checkpoints`: the probe's folder, of which those after the step are adopted, with `tag` its last; `files`:
        its event files and its journal, each with its place in the run. Overwrites nothing: QuarantineError."""
        room = self._quarantine.room(incident, rollback)
        if self.done(incident, rollback) is None:
            if all(named.tag != tag for named in checkpoints_in(checkpoints)):
                raise QuarantineError(f"{checkpoints} has no {tag} any more: nothing of the probe was adopted")
            write_atomically(room / ADOPTION, dump_json({"from": str(checkpoints), "done": False}))
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
    try:
        destination.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError:
        part = destination.with_name(f".{destination.name}{_PART}")
        shutil.copyfile(source, part)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(destination)
    sync_folder(destination.parent)


def _same(one: Path, other: Path) -> bool:
    return one.samefile(other) or filecmp.cmp(one, other, shallow=False)
