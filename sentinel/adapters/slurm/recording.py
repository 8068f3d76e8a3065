"""Records the run's jobs while Slurm still knows them, and the nodes that failed under them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.queue import Queue
from sentinel.adapters.slurm.records import JobRecords, NodeFailures
from sentinel.jobscript.slurm_jobs import SlurmJob
from sentinel.vocabulary.errors import SlurmRefused

__all__ = ["Recording"]

log = logging.getLogger(__name__)


class Recording:
    """Asks Slurm for what is not recorded yet, once for each job or array."""

    def __init__(self, client: SlurmClient, queue: Queue, records: JobRecords, failures: NodeFailures) -> None:
        self._client = client
        self._queue = queue
        self._records = records
        self._failures = failures
        self._said: set[str] = set()

    def keep(self, jobs: Iterable[SlurmJob]) -> None:
        """Records script and properties of the jobs.

        What can't be recorded (another user's script) is said once: a run can be watched without it.
        """
        for group, members in self._missing(jobs).items():
            try:
                self._record(group, members)
            except SlurmRefused as error:
                if group not in self._said:
                    log.warning("%s; it could not be started again", error)
                self._said.add(group)

    def insist(self, jobs: Iterable[SlurmJob]) -> None:
        """The same where it has to be. SlurmRefused when Slurm does not hand something out."""
        for group, members in self._missing(jobs).items():
            self._record(group, members)

    def note_failed_nodes(self, jobs: Iterable[SlurmJob]) -> None:
        """A node that took a job with it is down now, and may be up again when the next job is placed."""
        for job in jobs:
            if job.state == "NODE_FAIL" and job.nodes and not self._failures.knows(job.id):
                self._failures.note(job.id, self._failed_under(job))

    def _missing(self, jobs: Iterable[SlurmJob]) -> dict[str, list[SlurmJob]]:
        """Of each job or array that is not recorded all that is there, those that run last."""
        groups: dict[str, list[SlurmJob]] = {}
        for job in sorted(jobs, key=lambda job: not job.waits):
            groups.setdefault(job.group, []).append(job)
        return {group: members for group, members in groups.items() if not self._records.has(group)}

    def _record(self, group: str, members: list[SlurmJob]) -> None:
        script, recorded = self._client.script(group), self._queue.recorded(group)
        self._records.keep(group, script, recorded, members)

    def _failed_under(self, job: SlurmJob) -> tuple[str, ...]:
        if not re.search(r"[\[,]", job.nodes):
            return (job.nodes,)
        return self._client.failed_nodes(job.nodes) or ("unknown",)
