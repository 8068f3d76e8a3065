"""What Slurm knows of jobs: a user's queue, asked for once for all runs of a daemon; jobs by id; what became of one."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Collection, Iterable
from threading import Lock
from typing import NamedTuple

from sentinel.adapters.slurm.client import Recorded, SlurmClient
from sentinel.jobscript.slurm_jobs import SlurmJob
from sentinel.plan.observation import Fate, Life
from sentinel.vocabulary.errors import SlurmRefused, SlurmUnavailable

_LONGEST_PAUSE_S = 300.0
_RECORDED_S = 10.0  # for which properties of jobs are kept: a thousand runs come with their jobs at once
_ABSENT_FOR = 20  # query intervals for which an id that Slurm does not know is not asked again: ids do not come back


class _Held(NamedTuple):
    jobs: tuple[SlurmJob, ...]
    asked_s: float
    failures: int = 0  # queries without an answer, one after the other
    away: SlurmUnavailable | None = None  # why there was none: then nothing is known

    def answered(self) -> tuple[SlurmJob, ...]:
        if self.away is not None:
            raise SlurmUnavailable(self.away.asked, self.away.why)
        return self.jobs


class Queue:
    """One user's jobs. Who needs no fresh answer shares the last one. SlurmUnavailable where that was none."""

    def __init__(self, client: SlurmClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._held: _Held | None = None
        self._forgotten = 0
        self._asking = Lock()
        self._recorded: tuple[float, dict[str, Recorded]] | None = None
        self._recording = Lock()

    def within(self, age_s: float) -> tuple[SlurmJob, ...]:
        """An answer that is at most so old; older while Slurm is away (it is asked ever more rarely), or while another
        run asks it: only who has no answer yet waits for that."""
        held = self._held
        if held is not None and not self._is_old(held, age_s):
            return held.answered()
        if not self._asking.acquire(blocking=held is None) and held is not None:
            return held.answered()
        try:
            held = self._held
            return (self._asked() if held is None or self._is_old(held, age_s) else held).answered()
        finally:
            self._asking.release()

    def afresh(self) -> tuple[SlurmJob, ...]:
        with self._asking:
            return self._asked().answered()

    def forget(self) -> None:
        """The next call asks: what is held, or just being asked, may be wrong by now."""
        self._forgotten += 1
        self._held = None

    def recorded(self, group: str) -> Recorded:
        """What the job or array was submitted as. SlurmRefused when Slurm does not know it any more."""
        with self._recording:
            held = self._recorded
            if held is None or group not in held[1] or self._clock() >= held[0] + _RECORDED_S:
                jobs = self._held.jobs if self._held is not None else ()
                held = (self._clock(), self._client.recorded_of({group, *(job.group for job in jobs)}))
                self._recorded = held
        if group not in held[1]:
            raise SlurmRefused(f"Slurm does not know job {group} any more")
        return held[1][group]

    def _is_old(self, held: _Held, age_s: float) -> bool:
        pause_s = min(age_s * 2.0 ** min(held.failures, 30), max(age_s, _LONGEST_PAUSE_S)) if held.failures else age_s
        return self._clock() >= held.asked_s + pause_s

    def _asked(self) -> _Held:
        before, forgotten = self._held, self._forgotten
        try:
            held = _Held(self._client.jobs(), self._clock())
        except SlurmUnavailable as error:
            held = _Held((), self._clock(), 1 + (0 if before is None else before.failures), error)
        if forgotten == self._forgotten:
            self._held = held
        return held


class Queues:
    def __init__(self) -> None:
        self._of: dict[str, Queue] = {}
        self._lock = Lock()

    def of(self, client: SlurmClient) -> Queue:
        with self._lock:
            return self._of.setdefault(client.user, Queue(client))


class NamedJobs:
    """Jobs that the user's own queue does not show, whoever's they are. One query for all of them, if any is needed."""

    def __init__(self, client: SlurmClient, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._interval_s = interval_s
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[SlurmJob, ...]]] = {}

    def beside(self, queue: Collection[SlurmJob], groups: Iterable[str], *, afresh: bool) -> tuple[SlurmJob, ...]:
        """The jobs and arrays of these ids that are not in the queue. SlurmUnavailable when Slurm does not answer."""
        missing = set(groups) - {name for job in queue for name in (job.id, job.group)}
        asked = {group for group in missing if afresh or self._is_old(group)}
        if asked:
            found = self._client.jobs_by_id(asked)
            for group in asked:
                self._known[group] = (self._clock(), _of_group(group, found))
        return tuple({job.id: job for group in missing for job in self._known[group][1]}.values())

    def _is_old(self, group: str) -> bool:
        asked_s, found = self._known.get(group, (0.0, None))
        return found is None or self._clock() >= asked_s + self._interval_s * (1 if found else _ABSENT_FOR)


def _of_group(group: str, jobs: Iterable[SlurmJob]) -> tuple[SlurmJob, ...]:
    return tuple(job for job in jobs if group in (job.id, job.group))


def fate_of(name: str, jobs: Collection[SlurmJob]) -> Fate:
    """What Slurm says of a job, a task, or a whole array, which is alive while any of its tasks is."""
    tasks = [job for job in jobs if name in (job.id, job.shown, job.group)]
    if not tasks:
        return Fate(life=Life.UNKNOWN, sentence=f"Slurm does not know job {name}")
    if (living := next((job for job in tasks if not job.ended and not job.waits), None)) is not None:
        return Fate(life=Life.ALIVE, sentence=f"Slurm shows job {living.shown} as {living.state}")
    return Fate(life=Life.GONE, sentence=f"Slurm shows job {name} as {tasks[-1].state}")


def foreign(job: SlurmJob) -> str | None:
    """Whose job it is, where it is not that of the account that sentinel runs as."""
    try:
        account = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        account = str(os.geteuid())
    if job.user in ("", account, str(os.geteuid())):
        return None
    return f"job {job.shown} belongs to {job.user}, and sentinel runs as {account}: run sentinel as {job.user}"
