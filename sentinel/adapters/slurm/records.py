"""STATE_DIR/jobs: what Slurm forgets minutes after a job's end. STATE_DIR/submissions: what will be submitted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.adapters.slurm.client import Recorded
from sentinel.durable import sync_folder, write_atomically
from sentinel.jobscript.slurm_jobs import JobProperties, SlurmJob, Submission, array_of
from sentinel.vocabulary.errors import SlurmRefused
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json

__all__ = ["JobRecords", "NodeFailures", "Prepared", "Submissions"]


class JobRecords:
    """STATE_DIR/jobs: GROUP.sh and GROUP.json of every job and array of the run that was seen alive."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, group: str) -> bool:
        """Whether the job is recorded whole; its JSON is written last."""
        return self._path(group, ".json").exists()

    def groups(self) -> list[str]:
        """Jobs and arrays that are recorded, the oldest first."""
        return sorted((p.stem for p in self._folder.glob("*.json") if p.stem.isdigit()), key=int)

    def newest(self) -> str | None:
        """The last job that was recorded; None when there is none."""
        return next(reversed(self.groups()), None)

    def keep(self, group: str, script: str, recorded: Recorded, members: Sequence[SlurmJob]) -> None:
        """Writes a job down. `members` are what was seen of it, several for an array; the last one's task stands for it
        where a job is started alone."""
        seen = {"tasks": members[-1].tasks, "array": array_of(members, recorded.properties.array_throttle)}
        self._folder.mkdir(exist_ok=True)
        write_atomically(self.script_file(group), script.encode("utf-8", "surrogateescape"))
        write_atomically(self._path(group, ".json"), dump_json(asdict(recorded) | seen, indent=2))

    def script_file(self, group: str) -> Path:
        """Where the batch script is kept, as Slurm had spooled it."""
        return self._path(group, ".sh")

    def script(self, group: str) -> str:
        """The batch script, as Slurm had spooled it."""
        return bounded.read_text(self.script_file(group), errors="surrogateescape")

    def array(self, group: str) -> str:
        """All tasks of the array that were there when it was recorded, with their throttle; "" for no array."""
        return bounded.read_record(
            self._path(group, ".json"), lambda data: str(data.get("array", data["tasks"])), SlurmRefused
        )

    def throttle(self, group: str) -> int | None:
        """How many tasks of the array may run at once, as it was when it was recorded; None for no limit."""
        return self.recorded(group)[0].properties.array_throttle

    def recorded(self, group: str) -> tuple[Recorded, str]:
        """What the job was submitted as, and its array's tasks. SlurmRefused for a record that can't be read."""
        return bounded.read_record(self._path(group, ".json"), _recorded, SlurmRefused)

    def _path(self, group: str, suffix: str) -> Path:
        return self._folder / f"{checked_name(group, 'a job id')}{suffix}"


def _recorded(data: dict[str, Any]) -> tuple[Recorded, str]:
    own = {name: value for name, value in data.items() if name not in ("tasks", "array")}
    recorded = Recorded(
        **own
        | {
            "properties": JobProperties(**data["properties"]),
            "script_arguments": tuple(data["script_arguments"]),
        }
    )
    return recorded, data["tasks"]


class NodeFailures:
    """STATE_DIR/nodes.json: which nodes failed under which of the run's jobs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, list[str]]:
        """Node -> jobs that it took with it. SlurmRefused for a file that can't be read."""
        try:
            return bounded.read_record(
                self._path, lambda data: {node: list(jobs) for node, jobs in data.items()}, SlurmRefused
            )
        except FileNotFoundError:
            return {}

    def knows(self, job: str) -> bool:
        """Whether the job's failure has been noted."""
        return any(job in jobs for jobs in self.read().values())

    def note(self, job: str, nodes: Sequence[str]) -> None:
        """Writes down that the nodes failed under the job."""
        failures = self.read()
        for node in nodes:
            failures.setdefault(node, []).append(job)
        write_atomically(self._path, dump_json(failures))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One sbatch that has been made ready."""

    number: int
    arguments: tuple[str, ...]
    """For sbatch, without the dependency and the comment."""

    script: Path
    script_arguments: tuple[str, ...]
    comment: str
    """The user's own, without our mark."""

    later: Path | None = None
    """The script for a start that goes on from the rollback's own checkpoints: without what is done once."""

    dependency: str
    """With {0}, {1} … for the ids of the earlier ones; "" for none."""

    properties: JobProperties | None
    """What the job has to come out as; None where nothing is known to compare with."""


class Submissions:
    """STATE_DIR/submissions/LABEL: plan.json and N.sh, as they were made ready; submitted.json, what was handed in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def labels(self) -> frozenset[str]:
        """What has been prepared whole."""
        return frozenset(p.parent.name for p in self._folder.glob("[!.]*/plan.json"))

    def rollbacks(self) -> list[str]:
        """Rollbacks of which something was submitted, the last one last."""
        found = [p.parent for p in self._folder.glob("incident-*/submitted.json")]
        return [p.name for p in sorted(found, key=lambda p: (p / "submitted.json").stat().st_mtime_ns)]

    def room(self, label: str) -> Path:
        """An empty folder to prepare in; `publish` makes it the label's."""
        room = self._folder / f".{checked_name(label, 'a submission')}.{os.getpid()}.new"
        if room.exists():
            shutil.rmtree(room)  # our own, left by a crash: nothing of it was ever submitted
        room.mkdir(parents=True)
        return room

    def publish(self, label: str, room: Path, prepared: Sequence[Prepared], shape: Sequence[Submission]) -> None:
        """Makes the folder with its scripts the label's, whole. `shape`: of the jobs that it stands in for."""
        rows = [
            asdict(one) | {"script": one.script.name, "later": one.later.name if one.later else None}
            for one in prepared
        ]
        document = {"submissions": rows, "shape": [asdict(one) for one in shape]}
        write_atomically(room / "plan.json", dump_json(document, indent=2))
        room.rename(self._room_of(label))
        sync_folder(self._folder)

    def read(self, label: str) -> tuple[Prepared, ...]:
        """What was prepared. SlurmRefused when it can't be read."""
        path = self._room_of(label) / "plan.json"
        try:
            return bounded.read_record(
                path, lambda data: tuple(_prepared(row, path.parent) for row in data["submissions"]), SlurmRefused
            )
        except OSError as error:
            raise SlurmRefused(f"{path} can't be read: {error}") from error

    def shape(self, label: str) -> tuple[Submission, ...]:
        """The shape of the jobs that the label's stand in for; empty where it was not recorded."""
        path = self._room_of(label) / "plan.json"
        try:
            return bounded.read_record(
                path, lambda data: tuple(Submission(**row) for row in data.get("shape", ())), SlurmRefused
            )
        except FileNotFoundError:
            return ()

    def original_file(self, label: str, number: int) -> Path | None:
        """Where the run's own script is that a rollback's was made from; None where that was not changed."""
        path = self._room_of(label) / f"{number}.original.sh"
        return path if path.exists() else None

    def original(self, label: str, number: int) -> str | None:
        """What is in it."""
        path = self.original_file(label, number)
        return bounded.read_text(path, errors="surrogateescape") if path else None

    def difference(self, label: str) -> str | None:
        """How the rollback's first script differs from the run's own, as a diff; None where that was not changed."""
        path = self._room_of(label) / "0.diff"
        return bounded.read_text(path, errors="replace") if path.exists() else None

    def submitted(self, label: str) -> dict[int, str]:
        """Number -> job id, of what was handed in the last time."""
        try:
            return bounded.read_record(
                self._room_of(label) / "submitted.json",
                lambda data: {int(number): checked_name(job, "a job id") for number, job in data.items()},
                SlurmRefused,
            )
        except FileNotFoundError:
            return {}

    def note(self, label: str, submitted: Mapping[int, str]) -> None:
        """Writes down what has been handed in."""
        text = dump_json({str(number): job for number, job in submitted.items()})
        write_atomically(self._room_of(label) / "submitted.json", text)

    def _room_of(self, label: str) -> Path:
        return self._folder / checked_name(label, "a submission")


def _prepared(row: dict[str, Any], folder: Path) -> Prepared:
    properties = row["properties"]
    return Prepared(
        **row
        | {
            "arguments": tuple(row["arguments"]),
            "script": folder / checked_name(row["script"], "script"),
            "later": folder / checked_name(row["later"], "later") if row.get("later") else None,
            "script_arguments": tuple(row["script_arguments"]),
            "properties": None if properties is None else JobProperties(**properties),
        }
    )
