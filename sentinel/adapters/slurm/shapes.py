"""In which shape the run's jobs are submitted again: of what is in the queue, or of what was stopped last.

STATE_DIR/jobs/stopped.json holds the latter: after an undo the queue is empty, and an array's other tasks and a chain's
other jobs are known from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.slurm.preparing import Preparation
from sentinel.adapters.slurm.records import JobRecords, Submissions
from sentinel.durable import write_atomically
from sentinel.jobscript.slurm_jobs import SlurmJob, Submission, mark_in, resubmission
from sentinel.vocabulary.errors import SlurmRefused
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunStarted

__all__ = ["Shapes"]


class Shapes:
    """Looks in the queue, in the records of jobs and in what was prepared for earlier rollbacks."""

    def __init__(self, path: Path, records: JobRecords, submissions: Submissions, preparation: Preparation) -> None:
        self._path = path
        self._records = records
        self._submissions = submissions
        self._preparation = preparation

    def of(self, jobs: Sequence[SlurmJob]) -> tuple[Submission, ...]:
        """The shape of jobs that are in the queue."""
        return resubmission(jobs, {job.group: self._records.throttle(job.group) for job in jobs})

    def before(self, queue: Sequence[SlurmJob], started: Sequence[RunStarted]) -> tuple[Submission, ...]:
        """The shape to start in when nothing of the run is in the queue: of what was stopped, or of the last job."""
        last = self._preparation.last_job(queue, started)
        groups, shape = self._read()
        return shape if last.group in groups else self._preparation.whole(last)

    def note(self, jobs: Sequence[SlurmJob]) -> None:
        """Records the shape of jobs that are about to be cancelled; of a rollback's jobs, of what they stood in for.

        A stop that is repeated finds fewer jobs: the first record counts.
        """
        groups = {job.group for job in jobs}
        known, _ = self._read()
        if groups <= set(known) or not all(self._records.has(group) for group in groups):
            return
        labels = {mark.label if (mark := mark_in(job.comment)) else None for job in jobs}
        label = labels.pop() if len(labels) == 1 else None
        shape = (self._submissions.shape(label) if label else ()) or self.of(jobs)
        document = {"groups": sorted(groups), "shape": [asdict(one) for one in shape]}
        write_atomically(self._path, dump_json(document, indent=2))

    def _read(self) -> tuple[list[str], tuple[Submission, ...]]:
        try:
            return bounded.read_record(
                self._path,
                lambda data: (list(data["groups"]), tuple(Submission(**row) for row in data["shape"])),
                SlurmRefused,
            )
        except FileNotFoundError:
            return [], ()
