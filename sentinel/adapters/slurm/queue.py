"""Slurm's queue, asked for once for all runs of a daemon whose jobs are the same user's."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from sentinel.adapters.slurm.client import Recorded, SlurmClient
from sentinel.jobscript.slurm_jobs import SlurmJob
from sentinel.vocabulary.errors import SlurmRefused, SlurmUnavailable

__all__ = ["Jobs", "Queue", "Queues"]

Jobs = tuple[SlurmJob, ...] | SlurmUnavailable
"""What Slurm has answered, or why it has not: then nothing is known."""

_LONGEST_PAUSE_S = 300.0
_RECORDED_S = 10.0
"""Seconds that what jobs were submitted as is held: a thousand runs come with their jobs at once."""


class _Held(NamedTuple):
    jobs: Jobs
    asked_s: float
    failures: int
    """Queries without an answer, one after the other."""


class Queue:
    """One user's jobs. Who needs no fresh answer shares the last one."""

    def __init__(self, client: SlurmClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._held: _Held | None = None
        self._forgotten = 0
        self._asking = Lock()
        self._recorded: tuple[float, dict[str, Recorded]] | None = None
        self._recording = Lock()

    def within(self, age_s: float) -> Jobs:
        """An answer that is at most so old; older while Slurm is away (it is asked ever more rarely), or is just being
        asked by another run: nobody waits for that but those who come first."""
        held = self._held
        if held is not None and not self._is_old(held, age_s):
            return held.jobs
        if not self._asking.acquire(blocking=held is None) and held is not None:
            return held.jobs
        try:
            held = self._held
            return self._asked() if held is None or self._is_old(held, age_s) else held.jobs
        finally:
            self._asking.release()

    def afresh(self) -> Jobs:
        """An answer to a question that is asked now."""
        with self._asking:
            return self._asked()

    def forget(self) -> None:
        """What is held, or just being asked, may be wrong by now: the next one who comes asks."""
        self._forgotten += 1
        self._held = None

    def recorded(self, group: str) -> Recorded:
        """What the job or array was submitted as. SlurmRefused when Slurm does not know it any more."""
        with self._recording:
            held = self._recorded
            if held is None or group not in held[1] or self._clock() >= held[0] + _RECORDED_S:
                known = self._held.jobs if self._held is not None else ()
                jobs = () if isinstance(known, SlurmUnavailable) else known
                held = (self._clock(), self._client.recorded_of({group, *(job.group for job in jobs)}))
                self._recorded = held
        if group not in held[1]:
            raise SlurmRefused(f"Slurm does not know job {group} any more")
        return held[1][group]

    def _is_old(self, held: _Held, age_s: float) -> bool:
        pause_s = min(age_s * 2.0 ** min(held.failures, 30), max(age_s, _LONGEST_PAUSE_S)) if held.failures else age_s
        return self._clock() >= held.asked_s + pause_s

    def _asked(self) -> Jobs:
        before, forgotten = self._held, self._forgotten
        jobs: Jobs
        try:
            jobs, failures = self._client.jobs(), 0
        except SlurmUnavailable as error:
            jobs, failures = error, 1 + (0 if before is None else before.failures)
        if forgotten == self._forgotten:
            self._held = _Held(jobs, self._clock(), failures)
        return jobs


class Queues:
    """One for each user whose jobs are watched."""

    def __init__(self) -> None:
        self._of: dict[str, Queue] = {}
        self._lock = Lock()

    def of(self, client: SlurmClient) -> Queue:
        """The one of the client's user, whoever came with it first."""
        with self._lock:
            return self._of.setdefault(client.user, Queue(client))
