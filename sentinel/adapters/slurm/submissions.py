"""STATE_DIR/submissions: what was made ready to be submitted, and what of it was handed in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.slurm.jobs import JobProperties, SlurmJob, Submission, mark_in
from sentinel.durable import sync_folder, write_atomically
from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import LineError, SlurmRefused
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json

_FORM = Form(error=LineError, name="the plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """What the run's configuration says about its jobs in Slurm."""

    run: str  # what its jobs are marked with: two runs that share a user must not share it
    state_dir: Path
    job_name: str | None = None
    script: Path | None = None  # what is submitted when no job of the run was ever seen
    working_directory: Path | None = None  # where that script is submitted from; a job that was seen keeps its own
    changes_in_script: bool = False  # a rollback's changes are made in the job script, not in overrides.json
    scheduler_override: str | None = None  # the trainer's option; None: asked of the trainer's own files
    sbatch_arguments: tuple[str, ...] = ()  # added to every submission, last: they win
    environment: Callable[[], dict[str, str]] = dict  # what its jobs get beside, looked up at each submission
    own_job: str | None = None  # the job that sentinel itself runs in, which is not the run's
    exclude_after_failures: int = 2  # a node that failed under so many of the run's jobs is left out
    query_interval_s: float = 15.0
    stop_grace_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One sbatch that has been made ready."""

    number: int
    arguments: tuple[str, ...]  # for sbatch, without the dependency and the comment
    script: str  # the name of its file beside plan.json
    script_arguments: tuple[str, ...] = ()
    comment: str = ""  # the user's own, without our mark
    later: str | None = None  # the script for a later start from the rollback's own checkpoints: without `once`
    dependency: str = ""  # with {0}, {1} … for the ids of the earlier ones; "" for none
    # what the job has to come out as; None where nothing is known to compare with
    properties: JobProperties | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """plan.json. `shape`: of the jobs that the submissions stand in for; empty where it was not recorded."""

    submissions: tuple[Prepared, ...]
    shape: tuple[Submission, ...] = ()


class Submissions:
    """STATE_DIR/submissions/LABEL: plan.json and N.sh, as they were made ready; submitted.json, what was handed in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def labels(self) -> frozenset[str]:
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
        document = asdict(_Plan(submissions=tuple(prepared), shape=tuple(shape)))
        write_atomically(room / "plan.json", dump_json(document, indent=2))
        room.rename(self._room_of(label))
        sync_folder(self._folder)

    def read(self, label: str) -> tuple[Prepared, ...]:
        """What was prepared. SlurmRefused when it can't be read."""
        try:
            return self._plan(label).submissions
        except OSError as error:
            raise SlurmRefused(f"{self._room_of(label) / 'plan.json'} can't be read: {error}") from error

    def shape(self, label: str) -> tuple[Submission, ...]:
        """The shape of the jobs that the label's stand in for; empty where it was not recorded."""
        try:
            return self._plan(label).shape
        except FileNotFoundError:
            return ()

    def original_file(self, label: str, number: int) -> Path | None:
        """Where the run's own script is that a rollback's was made from; None where that was not changed."""
        path = self._room_of(label) / f"{number}.original.sh"
        return path if path.exists() else None

    def difference(self, label: str) -> str | None:
        """How the rollback's first script differs from the run's own, as a diff; None where that was not changed."""
        path = self._room_of(label) / "0.diff"
        return bounded.read_text(path, errors="replace") if path.exists() else None

    def submitted(self, label: str) -> dict[int, str]:
        """Number -> job id, of what was handed in the last time."""
        return bounded.record_or(
            {},
            self._room_of(label) / "submitted.json",
            lambda data: {int(number): checked_name(job, "a job id") for number, job in data.items()},
            SlurmRefused,
        )

    def note(self, label: str, submitted: Mapping[int, str]) -> None:
        text = dump_json({str(number): job for number, job in submitted.items()})
        write_atomically(self._room_of(label) / "submitted.json", text)

    def _plan(self, label: str) -> _Plan:
        path = self._room_of(label) / "plan.json"
        return bounded.read_record(path, lambda data: read(_Plan, data, form=_FORM), SlurmRefused)

    def script_file(self, label: str, one: Prepared) -> Path:
        return self._room_of(label) / checked_name(one.script, "script")

    def _room_of(self, label: str) -> Path:
        return self._folder / checked_name(label, "a submission")

    def is_incomplete(self, label: str, here: Mapping[int, str]) -> bool:
        """Whether some of the label's jobs live (`here`, as of `living`) while others were never handed in."""
        there = {**here, **self.submitted(label)} if here else {}
        return bool(here) and any(one.number not in there for one in self.read(label))


def restart_of(group: str | None) -> str:
    """The label of a restart without a rollback, after the newest job that was recorded."""
    return f"restart-of-{'none' if group is None else group}"


def rollback_of(job: SlurmJob) -> str | None:
    """The rollback that sentinel has submitted the job for; None for any other job."""
    mark = mark_in(job.comment)
    return mark.label if mark and not mark.label.startswith(restart_of("")) else None


def living(jobs: Iterable[SlurmJob], run: str, label: str) -> dict[int, str]:
    """Number -> id of the run's jobs of this label that have not ended."""
    marks = [(job, mark_in(job.comment)) for job in jobs if not job.ended]
    return {mark.number: job.group for job, mark in marks if mark and mark.run == run and mark.label == label}
