"""The folder that a trainer saves to: what is there, whether it is whole, what is resumed from, and moving it aside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.checkpoints.completeness import Completeness, CompletenessScan
from sentinel.adapters.checkpoints.entries import Entries, checkpoint_named, checkpoints_in, named_in, walk_checkpoint
from sentinel.adapters.checkpoints.layouts import Named
from sentinel.adapters.checkpoints.pace import Pace
from sentinel.adapters.checkpoints.pins import PINNED, Pins
from sentinel.adapters.checkpoints.quarantine import QUARANTINE, Quarantine, room_in
from sentinel.adapters.checkpoints.reading import Progress
from sentinel.adapters.checkpoints.remembered import Remembered
from sentinel.adapters.checkpoints.save_folder import SaveFolder
from sentinel.adapters.checkpoints.trackers import Trackers, texts_in
from sentinel.adapters.checkpoints.verify import MANIFESTS, Examined, examine
from sentinel.durable import make_folders, write_atomically
from sentinel.listings import Kind
from sentinel.plan.observation import Checkpoint
from sentinel.vocabulary.errors import CheckpointError
from sentinel.vocabulary.manifest import Manifest, encode_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a filesystem has left, and whether that is enough."""

    needed_bytes: int
    needed_files: int
    free_bytes: int  # what an ordinary user may still write
    problem: str | None  # what there is too little of, as a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFolderSeen:
    """What one look at the save folder has shown."""

    checkpoints: tuple[Checkpoint, ...]  # by step
    latest: str | None  # see `Trackers.latest_of`
    by_newest: bool  # see `Trackers.by_newest`
    disagreement: str | None  # see `Trackers.disagreement`
    pinned: tuple[str, ...]  # tags that may be gone back to, by step
    incidents: frozenset[str]  # those that have something in the quarantine


class Checkpoints:
    """The folder that the trainer saves to. With the run's manifests, a flipped bit is found wherever it is."""

    def __init__(
        self,
        folder: Path,
        *,
        manifests: Path | None = None,
        verified: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """manifests: STATE_DIR/manifests; verified: STATE_DIR/verified.json, what need not be read again; None is
        without."""
        self.folder = folder
        self._remembered = None if verified is None else Remembered(verified, folder)
        self.pins = Pins(folder)
        self.files = SaveFolder(folder, clock=clock)
        self.progress: Callable[[float], None] | None = None  # called with the share of a look that is done
        self._scan, self._manifests = CompletenessScan(folder), manifests
        self._trackers = Trackers(folder)
        self._quarantine = Quarantine(folder, manifests)
        self.quarantined = self._quarantine.tags
        self._of: tuple[Mapping[str, Completeness], Mapping[str, str]] | None = None  # what the next are made of
        self._checkpoints: tuple[Checkpoint, ...] = ()

    def look(self, *, fresh: bool = False) -> SaveFolderSeen:
        """All checkpoints after a cheap look (names, and the newest ones' completeness; reads no shard), the trackers,
        the pins and the quarantine. OSError.

        What has not changed since the last look is not asked for again: see `save_folder`. `fresh` asks for all: what
        acts, acts on that.
        """
        view = self.files.look(fresh=fresh, named=self._scan.doubtful(), progress=self._half(0.0))
        entries, texts = view.entries, texts_in(self.folder, view.entries)
        complete = self._scan.scan(view, fresh=fresh, progress=self._half(0.5))
        return SaveFolderSeen(
            checkpoints=self._as_checkpoints(entries, complete, texts),
            latest=self._trackers.latest_of(entries, texts),
            by_newest=self._trackers.by_newest(entries, texts),
            disagreement=self._trackers.disagreement_of(entries, texts),
            pinned=tuple(n.tag for n in named_in(self._inside(PINNED, entries, fresh=fresh))),
            incidents=frozenset(
                name for name, kind in self._inside(QUARANTINE, entries, fresh=fresh).items() if kind == "folder"
            ),
        )

    def _half(self, before: float) -> Callable[[float], None] | None:
        told = self.progress
        return None if told is None else lambda share: told(before + share / 2)

    def list(self) -> tuple[Checkpoint, ...]:
        """The checkpoints, by step, of a fresh look."""
        return self.look(fresh=True).checkpoints

    def latest(self) -> str | None:
        """The tag that a restart would resume from, of a fresh look: see `Trackers.latest_of`."""
        entries = self.files.entries(fresh=True)
        return self._trackers.latest_of(entries, texts_in(self.folder, entries))

    def disagreement(self) -> str | None:
        """How the trackers contradict one another or the folder, of a fresh look; None when they do not."""
        entries = self.files.entries(fresh=True)
        return self._trackers.disagreement_of(entries, texts_in(self.folder, entries))

    def steps(self) -> frozenset[int]:
        """Those for which there are checkpoints, by their names alone."""
        return frozenset(named.global_step for named in self.files.entries().checkpoints)

    def changed_last(self) -> Path | None:
        """The checkpoint that was changed last, or one of its files; None where there is none. OSError."""
        view = self.files.look()
        found = {tag: i.mtime_ns for tag in view.entries.files if (i := view.identities.get(tag)) is not None}
        return self.folder / view.entries.files[max(found, key=found.__getitem__)][0] if found else None

    def _as_checkpoints(
        self, entries: Entries, complete: Mapping[str, Completeness], texts: Mapping[str, str]
    ) -> tuple[Checkpoint, ...]:
        if self._of is not None and self._of[0] is complete and self._of[1] == texts:
            return self._checkpoints
        unused = {n.tag: Completeness(problem=no) for n in entries.checkpoints if (no := n.layout.unused(texts))}
        found = ((n, unused.get(n.tag, complete[n.tag])) for n in entries.checkpoints)
        self._of = (complete, texts)
        self._checkpoints = tuple(
            Checkpoint(tag=n.tag, global_step=n.global_step, complete=c.complete, problem=c.problem) for n, c in found
        )
        return self._checkpoints

    def _inside(self, name: str, entries: Entries, *, fresh: bool) -> Mapping[str, Kind]:
        """The entries of a folder of sentinel's own in the save folder; none where it is not there."""
        listing = self.files.listings.of(self.folder / name, fresh=fresh) if name in entries.kinds else None
        return listing.kinds if listing is not None else {}

    def verify(self, tag: str, *, progress: Progress | None = None, pace: Pace | None = None) -> Checkpoint:
        """The checkpoint after walking it whole and reading every byte. CheckpointError if it is not there. Not yet
        verified, with the problem, where it changed meanwhile: a retention deleted it, or a save went on.

        Checked by its manifest where there is one, else by the CRCs in its files, and always for nan in its floats. A
        file that was read before, and is the very same, is not read again. pace: as of `examine`.
        """
        named = self._find(tag)
        try:
            examined = examine(
                self.folder, named, self._manifests, progress=progress, remembered=self._remembered, pace=pace
            )
        except CheckpointError as error:  # a manifest that can't be read
            examined = Examined(complete=True, problem=str(error))
        return Checkpoint(
            tag=tag,
            global_step=named.global_step,
            complete=examined.complete,
            verified=None if examined.changed else examined.problem is None,
            problem=examined.problem,
            verification=examined.verification,
        )

    def linking(self, tag: str) -> AbstractContextManager[None]:
        """Around the making or the removal of a pin: the links change the files' ctime, and what was read of them stays
        known."""
        if self._remembered is None:
            return nullcontext()
        return self._remembered.linking(tag, lambda: walk_checkpoint(self.folder, checkpoint_named(tag)).files)

    def digest(self, tag: str, *, progress: Progress | None = None) -> Manifest:
        """The manifest of a checkpoint, read whole. CheckpointError when it is not there, or not whole."""
        named = self._find(tag)
        examined = examine(self.folder, named, self._manifests, digests=True, progress=progress)
        if examined.problem is not None:
            raise CheckpointError(f"{tag} gets no manifest, because it is not whole: {examined.problem}")
        return Manifest(tag=tag, global_step=named.global_step, files=examined.files)

    def room_for_saves(self, saves: int) -> Room | None:
        """Whether so many more checkpoints of the newest one's size would fit; None while there is no checkpoint."""
        walked = (walk_checkpoint(self.folder, named) for named in reversed(checkpoints_in(self.folder)))
        if (contents := next((found for found in walked if found.refusal is None), None)) is None:
            return None
        return room_for(self.folder, saves * contents.size_bytes, saves * len(contents.files))

    def quarantine(self, tags: Sequence[str], incident: str, rollback: str) -> None:
        """Moves checkpoints into the quarantine, each with its manifest; their pins are set aside."""
        self.pins.set_aside(tags, incident, rollback)  # first: this is called again while a checkpoint is left
        self._quarantine.take(tags, incident, rollback)

    def restore(self, incident: str, rollback: str) -> None:
        """Everything that a rollback moved, the trackers and the pins as they were. Overwrites nothing."""
        self._quarantine.bring_back(incident, rollback)
        self.pins.bring_back(incident, rollback)

    def trackers_kept(self, incident: str, rollback: str) -> dict[str, str | None]:
        """What `restore` makes the trackers say again, by name; None for one that it takes away."""
        return self._trackers.kept(self.room_of(incident, rollback))

    def room_of(self, incident: str, rollback: str) -> Path:
        """Where a rollback's checkpoints are moved to; it need not be there."""
        return room_in(self.folder / QUARANTINE, incident, rollback)

    def point_latest(self, tag: str | None, global_step: int, *, incident: str, rollback: str) -> None:
        """Makes a restart resume from the tag; the first time in a rollback, keeps a copy of the trackers.

        None takes them away, into the quarantine: then training starts from scratch. Where the newest is resumed from,
        what is newer than the tag goes into the quarantine.
        """
        room = self._quarantine.room(incident, rollback)
        self._trackers.keep(room)
        target = None if tag is None else checkpoint_named(tag, CheckpointError)
        there = {named.tag for named in checkpoints_in(self.folder)}
        self.pins.set_aside(
            [t for t in self.pins.usable() if t not in there and self.pins.step_of(t) > global_step], incident, rollback
        )  # of the line that is left, and deleted by a retention: nothing but the pin is there to be moved
        if target is not None and target.layout.resumes_newest:
            newer = [n.tag for n in checkpoints_in(self.folder) if n.layout is target.layout and n.order > target.order]
            self.quarantine(newer, incident=incident, rollback=rollback)
        self._trackers.point(target, room)

    def _find(self, tag: str) -> Named:
        found = checkpoints_in(self.folder)
        named = next((n for n in found if n.tag == tag), None)
        if named is None:
            near = ", ".join(n.tag for n in found[-5:]) or "none"
            raise CheckpointError(f"{self.folder} has no checkpoint {tag!r}; the last ones are {near}")
        return named


def write_manifest(folder: Path, tag: str, state_dir: Path, *, progress: Progress | None = None) -> Path:
    """Reads a checkpoint whole and writes STATE_DIR/manifests/TAG.json; returns where. CheckpointError.

    A checkpoint that disagrees with the manifest it has is not whole: a new one never hides what the old one shows.
    """
    manifests = state_dir / MANIFESTS
    manifest = Checkpoints(folder, manifests=manifests).digest(tag, progress=progress)
    make_folders(manifests)
    write_atomically(path := manifests / f"{manifest.tag}.json", encode_manifest(manifest))
    return path


def room_for(
    folder: Path,
    needed_bytes: int,
    needed_files: int = 0,
    *,
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
) -> Room:
    """Whether so much can still be written below this folder, now. A project's quota shows in the free bytes (ext4,
    XFS), a user's does not. OSError when it can't be looked at."""
    status = statvfs(folder)
    free_bytes, problem = status.f_bavail * status.f_frsize, None
    if free_bytes < needed_bytes:
        problem = f"{folder} has {_gb(free_bytes)} free, and {_gb(needed_bytes)} are needed"
    elif status.f_files and status.f_favail < needed_files:  # a filesystem without inodes counts no files
        problem = f"{folder} has room for {status.f_favail} more files, and {needed_files} are needed"
    return Room(
        needed_bytes=needed_bytes,
        needed_files=needed_files,
        free_bytes=free_bytes,
        problem=problem,
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
