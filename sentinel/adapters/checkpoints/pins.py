"""Checkpoints kept safe from a retention that deletes old ones: a second name for every file (hard links).

Links cost no space while the checkpoint is there, and keep its bytes when it is deleted. They do not keep them when a
trainer writes into the same files again; the manifest tells.

A rollback leaves the line of all that lies after its target: pins of that are set aside, in .left/INCIDENT/ROLLBACK,
and are no target any more. They are kept, and undo brings them back.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from sentinel.adapters.checkpoints.entries import checkpoint_named, names_of, walk_checkpoint
from sentinel.adapters.checkpoints.quarantine import QUARANTINE, UNDONE, room_in, tags_in
from sentinel.adapters.checkpoints.walk import Contents, mirrored, walk
from sentinel.durable import make_folders, move, rename, sync_folder, write_atomically
from sentinel.vocabulary.errors import QuarantineError

PINNED = ".sentinel-pinned"
_LEFT = ".left"
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


class Pins:
    """The pinned checkpoints of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pinned = folder, folder / PINNED

    def tags(self) -> tuple[str, ...]:
        """What is pinned, by step; what is set aside comes last."""
        return tuple(dict.fromkeys((*self.usable(), *self.left())))

    def usable(self) -> tuple[str, ...]:
        """What is pinned and may be gone back to, by step."""
        return tags_in(self._pinned)

    def left(self) -> dict[str, str]:
        """Tag -> the incident whose rollback, or undo, has set its pin aside."""
        return {tag: room.parent.name for tag, room in self._aside().items()}

    def notes(self) -> list[str]:
        """What a person should know of pins that are set aside, as sentences."""
        said, usable = [], self.usable()
        for tag, room in self._aside().items():
            incident, undone, again = room.parent.name, UNDONE in room.name, tag in usable
            can_undo = (self._folder / QUARANTINE / incident).is_dir() and not undone and not again
            ends = "ends the newer pin, a second time this one" if again else "ends that"
            do = f"undo {incident}` brings it back with its pin" if can_undo else f"pin {tag} --release` {ends}"
            why = f"{f'the undo of {incident}' if undone else incident} moved it away; `sentinel {do}"
            said.append(f"{'an earlier ' * again}{tag} is pinned and is no rollback target: {why}")
        return said

    def _aside(self) -> dict[str, Path]:
        """Tag -> the room that its pin was set aside in; the newest of several."""
        rooms = sorted((self._pinned / _LEFT).glob("*/*"))
        return {tag: room for room in rooms for tag in tags_in(room)}

    def set_aside(self, tags: Iterable[str], incident: str, rollback: str) -> None:
        """Of a line that the rollback leaves. What is aside already counts as done."""
        room = room_in(self._pinned / _LEFT, incident, rollback)
        for tag in {*tags} & {*self.usable()}:
            move(self._pinned / tag, room / tag)

    def leave(
        self, after_step: int, there: Collection[str], moved: Collection[str], incident: str, rollback: str
    ) -> None:
        """Before an undo brings anything back, once: sets aside the pins of the line that it takes back, where the
        checkpoint is not `there` any more. A pin of what the rollback had `moved` stays, unless that one's is aside."""
        room = room_in(self._pinned / _LEFT, incident, f"{rollback}{UNDONE}")
        if (done := room / "all").exists():  # taken up again: what is pinned now may have come back
            return
        aside = {*tags_in(room_in(self._pinned / _LEFT, incident, rollback))}
        stay = {*there, *({*moved} - aside)}
        if (gone := [t for t in self.usable() if t not in stay and self.step_of(t) > after_step]) or aside:
            self.set_aside(gone, incident, room.name)
            make_folders(room)
            write_atomically(done, "")

    def bring_back(self, incident: str, rollback: str) -> None:
        """The pins that the rollback has set aside. QuarantineError where the tag is pinned anew."""
        room = room_in(self._pinned / _LEFT, incident, rollback)
        for tag in tags_in(room):
            move(room / tag, self._pinned / tag)

    def pin(self, tag: str) -> None:
        """Links every file of a checkpoint, whole or not at all; resumes one that was cut short.

        QuarantineError where the filesystem has no hard links, or another checkpoint is pinned under this tag.
        """
        named = checkpoint_named(tag)
        pinned = self._pinned / tag
        if not self._linked(walk_checkpoint(self._folder, named), pinned):
            raise QuarantineError(f"{pinned} is there already, and holds another {tag}: unpin it first")

    def step_of(self, tag: str) -> int:
        """The optimizer step that a pinned tag stands for. QuarantineError for what is no checkpoint's name."""
        return checkpoint_named(tag).global_step

    def restore(self, tag: str) -> None:
        """Brings back a pinned checkpoint whose original is gone; the pin stays. QuarantineError."""
        pinned, named = self._found(tag), checkpoint_named(tag)
        if files := names_of(pinned, named):
            for name in files:
                _link(pinned / name, self._folder / name)
            sync_folder(self._folder)
            return
        destination = self._folder / tag
        if not self._linked(walk(pinned), destination):
            raise QuarantineError(f"{destination} is there already: the pinned {tag} would overwrite it")

    def let_go(self, tag: str) -> bool:
        """Removes a pin if every file of it still has another name, so that nothing is lost; else False."""
        going = self._pinned / f".{checkpoint_named(tag).tag}.going"
        for folder in (going, *self._places(tag)[:1]):  # the first is there when the removal was cut short
            if folder.is_dir():
                if any((folder / item.name).stat().st_nlink < 2 for item in _walked(folder).files):
                    return False
                if folder is not going:
                    rename(folder, going)
                shutil.rmtree(going)
                sync_folder(self._pinned)
        return True

    def unpin(self, tag: str) -> Path:
        """Moves a pin into the quarantine, where `purge` deletes it; on a person's command. Returns where it is."""
        pinned, room = self._found(tag), self._folder / QUARANTINE / "unpinned"
        places = (room / f"r{number}" / tag for number in itertools.count(1))
        destination = next(place for place in places if not os.path.lexists(place))
        move(pinned, destination)
        return destination

    def _found(self, tag: str) -> Path:
        if places := self._places(checkpoint_named(tag).tag):
            return places[0]
        raise QuarantineError(f"{tag} is not pinned; pinned are {', '.join(self.tags()) or 'none'}")

    def _places(self, tag: str) -> list[Path]:
        """Where pins of that name are, one that is set aside last."""
        places = (self._pinned / tag, *sorted((self._pinned / _LEFT).glob(f"*/*/{tag}")))
        return [place for place in places if place.is_dir()]

    def _linked(self, contents: Contents, destination: Path) -> bool:
        """Links under a name that is no checkpoint's, then renames: half of one is never seen. False for a conflict."""
        _trusted(contents)
        if os.path.lexists(destination):
            return _same(contents, _walked(destination))
        unfinished = self._pinned / f".{destination.name}.{destination.parent.name.lstrip('.')}.unfinished"
        mirrored(contents, unfinished, _link)
        if not _same(contents, _walked(unfinished)):
            raise QuarantineError(
                f"{unfinished} holds something else than {contents.root}: move it away, then try again"
            )
        for folder in ("", *contents.folders):
            sync_folder(unfinished / folder)
        move(unfinished, destination)
        return True


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination, follow_symlinks=False)
    except FileExistsError:
        return  # a pin that was cut short; `_same` compares the files afterwards
    except OSError as error:
        if error.errno in _NO_LINKS:
            why = error.strerror
            raise QuarantineError(f"{source} can't be pinned: its filesystem makes no hard link ({why})") from error
        raise QuarantineError(f"{source} can't be linked to {destination}: {error.strerror}") from error


def _walked(folder: Path) -> Contents:
    return _trusted(walk(folder))


def _trusted(contents: Contents) -> Contents:
    if contents.refusal is not None:
        raise QuarantineError(f"{contents.root} is left alone: {contents.refusal}")
    return contents


def _same(one: Contents, other: Contents) -> bool:
    """Whether both are names of the very same files."""
    return {(i.name, i.identity) for i in one.files} == {(i.name, i.identity) for i in other.files}
