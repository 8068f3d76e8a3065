"""Checkpoints kept safe from a retention that deletes old ones: a second name for every file (hard links).

Links cost no space while the checkpoint is there, and keep its bytes when it is deleted. They do not keep them when a
trainer writes into the same files again; the manifest tells.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import recognise
from sentinel.adapters.checkpoints.quarantine import QUARANTINE, rename
from sentinel.adapters.checkpoints.walk import Contents, walk
from sentinel.durable import make_folders, sync_folder
from sentinel.vocabulary.errors import QuarantineError

__all__ = ["PINNED", "Pins"]

PINNED = ".sentinel-pinned"
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


class Pins:
    """The pinned checkpoints of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pinned = folder, folder / PINNED

    def tags(self) -> tuple[str, ...]:
        """What is pinned, by step."""
        if not self._pinned.is_dir():
            return ()
        found = [named for path in self._pinned.iterdir() if (named := recognise(path.name))]
        return tuple(named.tag for named in sorted(found, key=lambda n: n.order))

    def pin(self, tag: str) -> None:
        """Links every file of a checkpoint; whole or not at all, and again from where it was cut short.

        QuarantineError where the filesystem knows no hard links, or what is pinned already is another checkpoint.
        """
        source, pinned = self._folder / _checked(tag), self._pinned / tag
        contents = _walked(source)
        if os.path.lexists(pinned):
            if not _same(contents, _walked(pinned)):
                raise QuarantineError(f"{pinned} is there already, and holds another {tag}: unpin it first")
            return
        self._link_whole(source, contents, pinned)

    def step_of(self, tag: str) -> int:
        """The optimizer step that a pinned tag stands for. QuarantineError for what is no checkpoint's name."""
        named = recognise(_checked(tag))
        return named.global_step if named else 0

    def restore(self, tag: str) -> None:
        """Brings back a pinned checkpoint whose original is gone; the pin stays. QuarantineError."""
        pinned, destination = self._pinned / _checked(tag), self._folder / tag
        if not pinned.is_dir():
            raise QuarantineError(f"{tag} is not pinned; pinned are {', '.join(self.tags()) or 'none'}")
        contents = _walked(pinned)
        if os.path.lexists(destination):
            if _same(contents, _walked(destination)):
                return
            raise QuarantineError(f"{destination} is there already: the pinned {tag} would overwrite it")
        self._link_whole(pinned, contents, destination)

    def let_go(self, tag: str) -> bool:
        """Takes a pin's names away, if every file of it has another name still: then nothing is lost. Else False."""
        pinned, going = self._pinned / _checked(tag), self._pinned / f".{tag}.going"
        for folder in (going, pinned):  # the first is there when letting go was cut short
            if folder.is_dir():
                if any((folder / item.name).stat().st_nlink < 2 for item in _walked(folder).files):
                    return False
                if folder is pinned:
                    rename(pinned, going)
                shutil.rmtree(going)
                sync_folder(self._pinned)
        return True

    def unpin(self, tag: str) -> Path:
        """Moves a pin into the quarantine, where `purge` deletes it; for a person to ask for. Returns where it is."""
        pinned, room = self._pinned / _checked(tag), self._folder / QUARANTINE / "unpinned"
        if not pinned.is_dir():
            raise QuarantineError(f"{tag} is not pinned; pinned are {', '.join(self.tags()) or 'none'}")
        number = 1
        while os.path.lexists(room / f"r{number}" / tag):
            number += 1
        destination = room / f"r{number}" / tag
        make_folders(destination.parent)
        rename(pinned, destination)
        sync_folder(destination.parent)
        sync_folder(self._pinned)
        return destination

    def _link_whole(self, source: Path, contents: Contents, destination: Path) -> None:
        """Links under a name that is no checkpoint's, then renames: nobody ever sees half of one."""
        unfinished = self._pinned / f".{destination.name}.{destination.parent.name.lstrip('.')}.unfinished"
        make_folders(unfinished)
        for folder in sorted(contents.folders):
            (unfinished / folder).mkdir(exist_ok=True)
        for item in contents.files:
            _link(source / item.name, unfinished / item.name)
        if not _same(contents, _walked(unfinished)):
            raise QuarantineError(f"{unfinished} holds something else than {source}: move it away, then try again")
        for folder in ("", *contents.folders):
            sync_folder(unfinished / folder)
        rename(unfinished, destination)
        sync_folder(destination.parent)
        sync_folder(self._pinned)


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination, follow_symlinks=False)
    except FileExistsError:
        return  # a pin that was cut short; whether it is the same file is looked at afterwards
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise QuarantineError(
                f"{source} can't be pinned: its filesystem makes no hard link ({error.strerror})"
            ) from error
        raise QuarantineError(f"{source} can't be linked to {destination}: {error.strerror}") from error


def _walked(folder: Path) -> Contents:
    contents = walk(folder)
    if contents.refusal is not None:
        raise QuarantineError(f"{folder} is left alone: {contents.refusal}")
    return contents


def _same(one: Contents, other: Contents) -> bool:
    """Whether both are names of the very same files."""
    return {(i.name, i.device, i.inode) for i in one.files} == {(i.name, i.device, i.inode) for i in other.files}


def _checked(tag: str) -> str:
    if recognise(tag) is None:
        raise QuarantineError(f"{tag!r} is not the name of a checkpoint")
    return tag
