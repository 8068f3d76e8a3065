"""Jobs that attempts have reported, or that sentinel has submitted, asked for by id: whoever's they are."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.preparing import restart_of
from sentinel.adapters.slurm.records import JobRecords, Submissions
from sentinel.jobscript.slurm_jobs import SlurmJob
from sentinel.plan.observation import Fate, Life
from sentinel.vocabulary.sample import RunStarted

__all__ = ["NamedJobs", "account", "fate_of_group", "fates_of", "foreign", "groups_of", "lost", "submitted_last"]

_ASKED = 4
"""Of so many of the last attempts' jobs: what an older one was is known by its successors."""

_ABSENT_FOR = 20
"""Query intervals for which an id that Slurm does not know is not asked for again: ids do not come back."""


class NamedJobs:
    """What the user's own queue does not show. One query for all of them, and only where there is one to be made."""

    def __init__(self, client: SlurmClient, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._interval_s = interval_s
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[SlurmJob, ...]]] = {}

    def beside(self, queue: Collection[SlurmJob], groups: Iterable[str], *, afresh: bool) -> tuple[SlurmJob, ...]:
        """The jobs and arrays of these ids that are not in the queue. SlurmUnavailable when nobody answers."""
        there = {name for job in queue for name in (job.id, job.group)}
        missing = {group for group in groups if group not in there}
        asked = {group for group in missing if afresh or self._is_old(group)}
        if asked:
            found = self._client.jobs_by_id(asked)
            for group in asked:
                mine = tuple(job for job in found if group in (job.id, job.group))
                self._known[group] = (self._clock(), mine)
        return tuple({job.id: job for group in missing for job in self._known[group][1]}.values())

    def _is_old(self, group: str) -> bool:
        asked_s, found = self._known.get(group, (0.0, None))
        if found is None:
            return True
        return self._clock() >= asked_s + self._interval_s * (1 if found else _ABSENT_FOR)


def groups_of(started: Sequence[RunStarted]) -> list[str]:
    """Jobs and arrays of the last attempts, each once."""
    named = [s.job_id.partition("_")[0] for s in started if s.job_id]
    return list(dict.fromkeys(reversed(named)))[:_ASKED]


def fates_of(started: Sequence[RunStarted], jobs: Collection[SlurmJob]) -> dict[str, Fate]:
    """Job id, as reported -> what Slurm says of it."""
    return {s.job_id: fate_of(s.job_id, jobs) for s in started if s.job_id}


def fate_of_group(group: str, jobs: Collection[SlurmJob]) -> Fate:
    """What Slurm says of a whole job or array: alive while any of its tasks is."""
    tasks = [job for job in jobs if group in (job.id, job.group)]
    living = next((job for job in tasks if not job.ended and not job.waits), None)
    if living is not None or not tasks:
        return fate_of(living.shown if living else group, tasks)
    return Fate(life=Life.GONE, sentence=f"Slurm shows job {group} as {tasks[-1].state}")


def fate_of(job_id: str, jobs: Collection[SlurmJob]) -> Fate:
    """What Slurm says of the job, by everything that it has answered."""
    job = next((job for job in jobs if job_id in (job.id, job.shown)), None)
    if job is None:
        return Fate(life=Life.UNKNOWN, sentence=f"Slurm does not know job {job_id}")
    life = Life.GONE if job.ended or job.waits else Life.ALIVE
    return Fate(life=life, sentence=f"Slurm shows job {job_id} as {job.state}")


def submitted_last(records: JobRecords, submissions: Submissions) -> dict[str | None, list[str]]:
    """Rollback (None: a restart without one) -> jobs that were submitted for it last and that no record knows."""
    labels: dict[str | None, str] = {None: restart_of(records.newest())}
    labels |= {rollback: rollback for rollback in submissions.rollbacks()[-1:]}
    return {
        rollback: [job for job in submissions.submitted(label).values() if not records.has(job)]
        for rollback, label in labels.items()
    }


def lost(
    submitted: Mapping[str | None, Sequence[str]], started: Sequence[RunStarted], jobs: Collection[SlurmJob]
) -> dict[str | None, str]:
    """The rollbacks whose submissions neither Slurm nor an attempt knows, with the sentence that says so."""
    seen = {name for job in jobs for name in (job.id, job.group)}
    seen |= {s.job_id.partition("_")[0] for s in started if s.job_id}
    return {
        rollback: f"sentinel submitted job {job}, which Slurm does not know and which has reported no start"
        for rollback, ids in submitted.items()
        for job in ids
        if job not in seen
    }


def foreign(job: SlurmJob) -> str | None:
    """Whose job it is, where it is not that of the account that sentinel runs as."""
    if not job.user or job.user in (account(), str(os.geteuid())):
        return None
    return f"job {job.shown} belongs to {job.user}, and sentinel runs as {account()}: run sentinel as {job.user}"


def account() -> str:
    """The account that this process acts as."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
