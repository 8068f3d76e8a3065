"""Checks of the run's folders: state folder, save folder, TensorBoard."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sentinel.adapters.journal import last_beginning
from sentinel.adapters.lock import RunLock
from sentinel.config import Config
from sentinel.daemon.doctor.finding import Finding
from sentinel.daemon.run_files import state_dir_of
from sentinel.daemon.wiring import neighbours_of


def state_folder(config: Config) -> Iterator[Finding]:
    """Whether files can be written and locked there, and whether a watch has the lock now."""
    state_dir = state_dir_of(config)
    if not state_dir.is_dir():
        absent = f"{state_dir} does not exist; the trainer's hook or `sentinel watch` creates it"
        yield Finding("bad", "state folder", absent, passes=True)
        return
    yield _file_operations("state folder", state_dir)
    scratch = state_dir / f".doctor.{os.getpid()}"
    scratch.mkdir()
    try:
        with RunLock(scratch) as lock:
            lock.renew()
        yield Finding("ok", "lock", "this filesystem creates and keeps it (link and rename)")
    finally:
        shutil.rmtree(scratch)
    yield _watch(state_dir)
    for name in ("PAUSED", "KILL"):
        if (state_dir / name).exists():
            yield Finding("bad", "state folder", f"{state_dir / name} exists: sentinel does not act", passes=True)


def _watch(state_dir: Path) -> Finding:
    if not (state_dir / "lock").exists():
        return Finding("note", "watch", "no watch of this run is running")
    holder = RunLock(state_dir).held_by()
    if holder is None:
        return Finding("note", "watch", "no watch is running; the last one left its lock, which the next takes over")
    return Finding("ok", "watch", f"running: {holder}")


def save_folder(config: Config) -> Iterator[Finding]:
    """Whether there is a checkpoint to roll back to, what `latest` names, and the space for more saves."""
    checkpoints = neighbours_of(config).checkpoints
    folder = checkpoints.folder
    if not folder.is_dir():
        absent = f"{folder} does not exist; [run] checkpoints should name the save folder"
        yield Finding("bad", "checkpoints", absent, passes=not _has_saved(config))
        return
    yield _file_operations("checkpoints", folder)
    found = checkpoints.list()
    complete = [c for c in found if c.complete]
    if complete:
        yield Finding("ok", "checkpoints", f"{len(complete)} of {len(found)} are complete, last {complete[-1].tag}")
    else:
        yield Finding("note", "checkpoints", f"0 of {len(found)} are complete: there is no rollback target yet")
    if (disagreement := checkpoints.disagreement()) is not None:
        yield Finding("bad", "latest", disagreement, passes=True)
    elif complete:
        yield Finding("ok", "latest", f"a restart resumes from {checkpoints.latest()}")
    saves = config.policy.room_for_saves
    room = checkpoints.room_for_saves(saves) if saves else None
    if room is not None:
        quota = "no quota found" if room.quota_bytes is None else f"{room.quota_bytes / 1e9:.1f} GB of quota"
        left = f"{saves} more saves take {room.needed_bytes / 1e9:.2f} GB; {room.free_bytes / 1e9:.1f} GB free, {quota}"
        yield Finding("ok" if room.problem is None else "bad", "room", room.problem or left, passes=True)


def tensorboard(config: Config) -> Iterator[Finding]:
    """Whether the folder of event files can be changed."""
    folder = config.run.tensorboard
    if folder is None:
        yield Finding("note", "TensorBoard", "[run] tensorboard is not set: a rollback does not change event files")
    elif not folder.is_dir():
        yield Finding("bad", "TensorBoard", f"{folder} does not exist", passes=not _has_saved(config))
    else:
        yield _file_operations("TensorBoard", folder.parent)


def _has_saved(config: Config) -> bool:
    """Whether the run has saved a checkpoint: before that, folders that the trainer creates may be missing."""
    newest = last_beginning(state_dir_of(config))
    return newest is not None and newest.saved


def _file_operations(what: str, folder: Path) -> Finding:
    """Tries to write, sync, link and rename a file there, and to move it into a subfolder."""
    scratch = folder / f".sentinel-doctor.{os.getpid()}"
    began = time.monotonic()
    scratch.mkdir()
    try:
        one = scratch / "one"
        with one.open("w") as file:
            file.write("x")
            file.flush()
            os.fsync(file.fileno())
        (scratch / "room").mkdir()
        one.rename(scratch / "room" / "one")
        try:
            os.link(scratch / "room" / "one", scratch / "two")
            links = "hard links too"
        except OSError:
            links = "but no hard links: checkpoints can't be pinned"
    finally:
        shutil.rmtree(scratch)
    return Finding("ok", what, f"{folder}: write, sync and rename work, {links} ({time.monotonic() - began:.3f} s)")
