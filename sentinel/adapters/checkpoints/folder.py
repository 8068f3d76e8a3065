"""The folder that a trainer saves to: what is there, whether it is whole, what is resumed from, and moving it aside."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import UNIVERSAL, Named, Resumes, recognise
from sentinel.adapters.checkpoints.looks import Looked, Looks
from sentinel.adapters.checkpoints.pins import Pins
from sentinel.adapters.checkpoints.quarantine import Quarantine
from sentinel.adapters.checkpoints.reading import Progress
from sentinel.adapters.checkpoints.trackers import Trackers
from sentinel.adapters.checkpoints.verify import MANIFESTS, Examined, examine
from sentinel.adapters.checkpoints.walk import checkpoint_named, checkpoints_in, walk_checkpoint
from sentinel.durable import make_folders, write_atomically
from sentinel.plan.observation import Checkpoint
from sentinel.vocabulary.errors import CheckpointError
from sentinel.vocabulary.manifest import Manifest, encode_manifest

_QUOTACTL_FD = 443  # the system call's number in Linux 5.14 and newer, on every architecture but alpha
_GET_USER_QUOTA = 0x800007 << 8
_QUOTA_BYTES = 72  # struct if_dqblk of <linux/quota.h>: two limits in blocks, the use in bytes, and files and times
_QUOTA_BLOCK_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a filesystem has left, and whether that is enough."""

    needed_bytes: int
    needed_files: int
    free_bytes: int  # what an ordinary user may still write
    quota_bytes: int | None  # what the user's own quota leaves; None where there is none or only root can read it
    problem: str | None  # what there is too little of, as a sentence


class Checkpoints:
    """The folder that the trainer saves to. With the run's manifests, a flipped bit is found wherever it is."""

    def __init__(self, folder: Path, *, manifests: Path | None = None) -> None:
        """manifests: STATE_DIR/manifests; None is without."""
        self.folder = folder
        self.pins = Pins(folder)
        self._looks, self._manifests = Looks(folder), manifests
        self._trackers = Trackers(folder)
        self.latest, self.disagreement = self._trackers.latest, self._trackers.disagreement
        self._quarantine = Quarantine(folder, manifests)
        self.quarantined, self.quarantined_incidents = self._quarantine.tags, self._quarantine.incidents

    def list(self) -> tuple[Checkpoint, ...]:
        """All of them, by step, after a cheap look: names, and the newest ones' completeness. Reads no shard."""
        found = checkpoints_in(self.folder)
        looked = self._looks.look(found)
        universal = [named.tag for named in found if named.layout is UNIVERSAL]
        if universal:
            latest = recognise(self._trackers.read("latest") or "")
            if latest is None or latest.layout is not UNIVERSAL:
                why = "it is a universal checkpoint, and `latest` names none: the run resumes from others"
                looked |= dict.fromkeys(universal, Looked(problem=why))
        seen = ((named, looked[named.tag]) for named in found)
        return tuple(
            Checkpoint(tag=n.tag, global_step=n.global_step, complete=s.complete, problem=s.problem) for n, s in seen
        )

    def verify(self, tag: str, *, progress: Progress | None = None) -> Checkpoint:
        """The checkpoint after walking it whole and reading every byte. CheckpointError if it is not there.

        Checked by its manifest where there is one, else by the CRCs in its files, and always for nan in its floats.
        """
        named = self._find(tag)
        try:
            examined = examine(self.folder, named, self._manifests, progress=progress)
        except CheckpointError as error:  # a manifest that can't be read
            examined = Examined(complete=True, problem=str(error))
        return Checkpoint(
            tag=tag,
            global_step=named.global_step,
            complete=examined.complete,
            verified=examined.problem is None,
            problem=examined.problem,
        )

    def digest(self, tag: str, *, progress: Progress | None = None) -> Manifest:
        """The manifest of a checkpoint, read whole. CheckpointError when it is not there, or not whole."""
        named = self._find(tag)
        examined = examine(self.folder, named, self._manifests, digests=True, progress=progress)
        if examined.problem is not None:
            raise CheckpointError(f"{tag} gets no manifest, because it is not whole: {examined.problem}")
        return Manifest(tag=tag, global_step=named.global_step, files=examined.files)

    def room_for_saves(self, saves: int) -> Room | None:
        """Whether so many more checkpoints of the newest one's size would fit; None while there is no checkpoint."""
        found = checkpoints_in(self.folder)
        if not found:
            return None
        contents = walk_checkpoint(self.folder, found[-1])
        return room_for(self.folder, saves * contents.size_bytes, saves * len(contents.files))

    def quarantine(self, tags: Sequence[str], incident: str, rollback: str) -> None:
        """Moves checkpoints into the quarantine, each with its manifest; their pins are set aside."""
        self.pins.set_aside(tags, incident, rollback)  # first: this is called again while a checkpoint is left
        self._quarantine.take(tags, incident, rollback)

    def restore(self, incident: str, rollback: str) -> None:
        """Everything that a rollback moved, the trackers and the pins as they were. Overwrites nothing."""
        self._quarantine.bring_back(incident, rollback)
        self.pins.bring_back(incident, rollback)

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
        if target is not None and target.layout.resumes in (Resumes.NEWEST, Resumes.LINK):
            newer = [n.tag for n in checkpoints_in(self.folder) if n.layout is target.layout and n.order > target.order]
            self.quarantine(newer, incident=incident, rollback=rollback)
        self._trackers.point(target, global_step, room)

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


def quota_left(folder: Path) -> int | None:
    """Bytes that the user's quota leaves, from the kernel; None where there is none.

    Network filesystems keep their quotas on the server (Lustre's `lfs quota`, NFS's rquotad): None there. A project's
    quota shows in the free bytes themselves, on ext4 and XFS.
    """
    quota = ctypes.create_string_buffer(_QUOTA_BYTES)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.syscall(_QUOTACTL_FD, descriptor, _GET_USER_QUOTA, os.geteuid(), quota)
    finally:
        os.close(descriptor)
    hard_limit_blocks, soft_limit_blocks, used_bytes = struct.unpack_from("=3Q", quota)
    limit = min((blocks for blocks in (hard_limit_blocks, soft_limit_blocks) if blocks), default=0) * _QUOTA_BLOCK_BYTES
    return None if failed or not limit else max(0, limit - used_bytes)


def room_for(
    folder: Path,
    needed_bytes: int,
    needed_files: int = 0,
    *,
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    quota: Callable[[Path], int | None] = quota_left,
) -> Room:
    """Whether so much can still be written below this folder, now. OSError when it can't be looked at."""
    status = statvfs(folder)
    free_bytes, quota_bytes, problem = status.f_bavail * status.f_frsize, quota(folder), None
    if free_bytes < needed_bytes:
        problem = f"{folder} has {_gb(free_bytes)} free, and {_gb(needed_bytes)} are needed"
    elif quota_bytes is not None and quota_bytes < needed_bytes:
        problem = f"the quota leaves {_gb(quota_bytes)} on {folder}, and {_gb(needed_bytes)} are needed"
    elif status.f_files and status.f_favail < needed_files:  # a filesystem without inodes counts no files
        problem = f"{folder} has room for {status.f_favail} more files, and {needed_files} are needed"
    return Room(
        needed_bytes=needed_bytes,
        needed_files=needed_files,
        free_bytes=free_bytes,
        quota_bytes=quota_bytes,
        problem=problem,
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
