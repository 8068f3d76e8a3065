"""A DeepSpeed save folder: what is there, whether it is whole, and moving it aside. Never deletes, never unpickles."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel.durable import sync_folder, write_atomically
from sentinel.plan.run_state import Checkpoint
from sentinel.vocabulary.errors import CheckpointError, QuarantineError

__all__ = ["QUARANTINE", "Checkpoints"]

QUARANTINE = ".sentinel-quarantine"
LATEST = ("latest", "latest_checkpointed_iteration.txt", "latest_universal")
"""DeepSpeed's, Megatron's and the universal checkpoint's; all that are there must agree."""

_TAG = re.compile(r"global_step(\d+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OPTIMIZER_SHARD = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL_SHARD = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_CHUNK_BYTES = 1 << 22


class Checkpoints:
    """The folder that the trainer saves to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> tuple[Checkpoint, ...]:
        """All global_stepN, by step. Reads names and sizes only; `complete` compares each with its siblings."""
        if not self.folder.is_dir():
            return ()
        found = [(int(match[1]), p) for p in self.folder.iterdir() if (match := _TAG.fullmatch(p.name))]
        shards = {step: _shards(entry) for step, entry in found}
        most = max((len(names) for names in shards.values()), default=0)
        return tuple(_described(step, entry, shards[step], most) for step, entry in sorted(found))

    def verify(self, tag: str) -> Checkpoint:
        """The checkpoint after reading every file of it: zip structure and CRCs. CheckpointError if it is not there."""
        listed = next((c for c in self.list() if c.tag == tag), None)
        if listed is None:
            near = ", ".join(c.tag for c in self.list()[-5:]) or "none"
            raise CheckpointError(f"{self.folder} has no checkpoint {tag!r}; the last ones are {near}")
        problem = listed.problem
        for path in _files(self.folder / tag) if problem is None else ():
            problem = problem or _unsound(path)
        return Checkpoint(
            tag=tag,
            global_step=listed.global_step,
            complete=listed.complete,
            verified=problem is None,
            problem=problem,
        )

    def latest(self) -> str | None:
        """What `latest` says; "" when it is torn or empty, None when there is none."""
        try:
            return (self.folder / "latest").read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None

    def point_latest(self, tag: str | None, global_step: int, *, incident: str, rollback: str) -> None:
        """Makes every `latest*` that is there name the tag; the first time in a rollback, keeps what they said.

        None takes them away, into the quarantine: then training starts from scratch.
        """
        kept = self._room(incident, rollback)
        self._keep_latest(kept)
        values = {"latest": tag, "latest_checkpointed_iteration.txt": str(global_step), "latest_universal": tag}
        for name in reversed(LATEST):  # `latest` last: it is what loading goes by
            path = self.folder / name
            if tag is None:
                if path.exists():
                    path.rename(kept / f"{name}.taken-away")
            elif name == "latest" or path.exists():
                write_atomically(path, str(values[name]))
        sync_folder(self.folder)

    def quarantine(self, tags: Sequence[str], *, incident: str, rollback: str) -> None:
        """Moves checkpoints into the quarantine by rename; what is there already counts as moved.

        QuarantineError when something of that name is in both places, or the quarantine is on another filesystem.
        """
        room = self._room(incident, rollback)
        for tag in tags:
            source, destination = self.folder / tag, room / tag
            if not _TAG.fullmatch(tag):
                raise QuarantineError(f"{tag!r} is not the name of a checkpoint")
            if not os.path.lexists(source):
                continue
            if os.path.lexists(destination):
                raise QuarantineError(f"{destination} is there already: {tag} would overwrite it")
            _rename(source, destination)
        sync_folder(room)
        sync_folder(self.folder)

    def quarantined(self, incident: str, rollback: str) -> tuple[str, ...]:
        """Tags that this rollback has moved away, by step."""
        room = self.folder / QUARANTINE / _checked(incident) / _checked(rollback)
        if not room.is_dir():
            return ()
        return tuple(sorted((p.name for p in room.iterdir() if _TAG.fullmatch(p.name)), key=lambda t: int(t[11:])))

    def restore(self, incident: str, rollback: str) -> None:
        """Brings back what `quarantine` and `point_latest` of a rollback changed. Overwrites no checkpoint."""
        room = self.folder / QUARANTINE / _checked(incident) / _checked(rollback)
        for tag in self.quarantined(incident, rollback):
            if os.path.lexists(self.folder / tag):
                raise QuarantineError(f"{self.folder / tag} is there again: the {tag} of {rollback} would overwrite it")
            _rename(room / tag, self.folder / tag)
        before = room / "latest-before"
        if before.is_dir():
            for name in LATEST:
                path = self.folder / name
                if (before / name).exists():
                    write_atomically(path, (before / name).read_bytes())
                elif path.exists():
                    path.rename(room / f"{name}.after")
        if room.is_dir():
            sync_folder(room)
            sync_folder(self.folder)

    def _room(self, incident: str, rollback: str) -> Path:
        room = self.folder / QUARANTINE / _checked(incident) / _checked(rollback)
        if not room.is_dir():
            room.mkdir(parents=True)
            sync_folder(self.folder)
        if room.stat().st_dev != self.folder.stat().st_dev:
            raise QuarantineError(f"{room} is on another filesystem than {self.folder}: a rename can't get there")
        return room

    def _keep_latest(self, room: Path) -> None:
        """Copies latest* aside, once: a rollback that is resumed must not take its own change for the original."""
        kept = room / "latest-before"
        if kept.is_dir():
            return
        unfinished = room / "latest-before.unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)  # our own copies of a few bytes, left by a crash
        unfinished.mkdir()
        for name in LATEST:
            if (self.folder / name).exists():
                write_atomically(unfinished / name, (self.folder / name).read_bytes())
        unfinished.rename(kept)
        sync_folder(room)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise QuarantineError(f"{name!r} can't name a folder of the quarantine")
    return name


def _rename(source: Path, destination: Path) -> None:
    try:
        source.rename(destination)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise QuarantineError(f"{destination} is on another filesystem than {source}") from error
        raise


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(p for p in folder.rglob("*") if p.is_file())


def _shards(folder: Path) -> frozenset[str]:
    if folder.is_symlink() or not folder.is_dir():
        return frozenset()
    return frozenset(p.name for p in folder.iterdir() if _OPTIMIZER_SHARD.fullmatch(p.name))


def _described(step: int, folder: Path, shards: frozenset[str], most_shards: int) -> Checkpoint:
    problem = _incomplete(folder, shards, most_shards)
    return Checkpoint(tag=folder.name, global_step=step, complete=problem is None, problem=problem)


def _incomplete(folder: Path, shards: frozenset[str], most_shards: int) -> str | None:
    """What is missing or does not belong there, by name; None when nothing is."""
    if folder.is_symlink() or not folder.is_dir():
        return f"{folder.name} is not a folder of its own"
    names = []
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return f"{path.name} is neither a file nor a folder"
        if stat.S_ISREG(mode) and path.lstat().st_size == 0 and path.suffix == ".pt":
            return f"{path.name} is empty"
        names.append(path.name)
    if not any(_MODEL_SHARD.fullmatch(name) for name in names):
        return "it has no *model_states.pt"
    if len(shards) < most_shards:
        return f"it has {len(shards)} optimizer shards, and its siblings have {most_shards}"
    return None


def _unsound(path: Path) -> str | None:
    """What is wrong with a file that torch.save wrote, found without unpickling it; None when nothing is."""
    if path.suffix != ".pt":
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as stream:
                    while stream.read(_CHUNK_BYTES):  # reading to the end checks the CRC
                        pass
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        return f"{path.name}: {error}"
    return None
