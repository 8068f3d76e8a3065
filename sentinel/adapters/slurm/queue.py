"""What Slurm knows of jobs: an account's queue, asked for once for all runs of a daemon; what became of a job."""

from __future__ import annotations

import math
import os
import pwd
import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from sentinel.adapters.slurm.client import Recorded, SlurmClient
from sentinel.adapters.slurm.jobs import SlurmJob
from sentinel.adapters.slurm.named_jobs import NamedJobs, pause_s
from sentinel.adapters.slurm.shared_answers import Answered, SharedAnswers
from sentinel.plan.observation import Life, ProcessState
from sentinel.vocabulary.errors import SlurmRefused, SlurmUnavailable

_RECORDED_S = 10.0  # for which properties of jobs are kept: a thousand runs come with their jobs at once


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

    def __init__(
        self,
        client: SlurmClient,
        clock: Callable[[], float] = time.monotonic,
        *,
        named: NamedJobs | None = None,
        shared: SharedAnswers | None = None,
    ) -> None:
        """shared: with other processes of the same daemon, by the same clock."""
        self.named = named or NamedJobs(client, clock)
        self._client = client
        self._clock = clock
        self._held: _Held | None = None
        self._shared = shared
        self._forgotten = 0
        self._forgotten_s = -math.inf
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
            return (self._asked(age_s) if held is None or self._is_old(held, age_s) else held).answered()
        finally:
            self._asking.release()

    def afresh(self) -> tuple[SlurmJob, ...]:
        with self._asking:
            return self._asked().answered()

    def forget(self) -> None:
        """The next call asks: what is held, or just being asked, may be wrong by now."""
        self._forgotten += 1
        self._forgotten_s = self._clock()
        self._held = None

    def recorded(self, group: str) -> Recorded:
        """What the job or array was submitted as. SlurmRefused when Slurm does not know it any more."""
        with self._recording:
            held = self._recorded
            if held is None or group not in held[1] or self._clock() >= held[0] + _RECORDED_S:
                jobs = self._held.jobs if self._held is not None else ()
                asked = {group, *(job.group for job in jobs), *self.named.groups()}
                held = (self._clock(), self._client.recorded_of(asked))
                self._recorded = held
        if group not in held[1]:
            raise SlurmRefused(f"Slurm does not know job {group} any more")
        return held[1][group]

    def _is_old(self, held: _Held, age_s: float) -> bool:
        return self._clock() >= held.asked_s + pause_s(age_s, held.failures)

    def _asked(self, age_s: float = 0.0) -> _Held:
        """An answer that is at most so old, where another process has it; else a new one."""
        if self._shared is None:
            return self._query()
        try:
            with self._shared.asking(self._client.user, waits=age_s == 0 or self._held is None) as may_ask:
                found = self._read(age_s)
                if found is None and not may_ask and self._held is not None:
                    return self._held
                return self._query() if found is None else found
        except OSError:  # the folder is gone, or may not be written: each process asks for itself
            return self._query()

    def _read(self, age_s: float) -> _Held | None:
        if self._shared is None or age_s == 0:
            return None
        answered = self._shared.read(self._client.user, after_s=self._forgotten_s)
        if answered is None:
            return None
        away = None if answered.why is None else SlurmUnavailable(*answered.why)
        held = _Held(answered.jobs, answered.began_s, answered.failures, away)
        if self._is_old(held, age_s):
            return None
        self._held = held
        return held

    def _query(self) -> _Held:
        before, forgotten, began_s = self._held, self._forgotten, self._clock()
        try:
            held = _Held(self._client.jobs(), self._clock())
        except SlurmUnavailable as error:
            held = _Held((), self._clock(), 1 + (0 if before is None else before.failures), error)
        if self._shared is not None:
            why = None if held.away is None else (held.away.asked, held.away.why)
            self._shared.write(
                self._client.user, Answered(jobs=held.jobs, began_s=began_s, failures=held.failures, why=why)
            )
        if forgotten == self._forgotten:
            self._held = held
        return held


class Queues:
    """The queues of a daemon's runs: one for each account, and one NamedJobs for all of them. `shared` is a folder of
    the daemon's own, where it has several worker processes: they ask for an account once for all."""

    def __init__(self, shared: Path | None = None) -> None:
        self._shared = None if shared is None else SharedAnswers(shared)
        self._of: dict[str, Queue] = {}
        self._named: NamedJobs | None = None
        self._lock = Lock()

    def of(self, client: SlurmClient) -> Queue:
        with self._lock:
            self._named = self._named or NamedJobs(client)
            return self._of.setdefault(client.user, Queue(client, named=self._named, shared=self._shared))


def fate_of(name: str, jobs: Collection[SlurmJob]) -> ProcessState:
    """What Slurm says of a job, a task, or a whole array, which is alive while any of its tasks is."""
    tasks = [job for job in jobs if name in (job.id, job.shown, job.group)]
    if not tasks:
        return ProcessState(life=Life.UNKNOWN, sentence=f"Slurm does not know job {name}")
    if (living := next((job for job in tasks if not job.ended and not job.waits), None)) is not None:
        return ProcessState(life=Life.ALIVE, sentence=f"Slurm shows job {living.shown} as {living.state}")
    return ProcessState(life=Life.GONE, sentence=f"Slurm shows job {name} as {tasks[-1].state}")


def foreign(job: SlurmJob) -> str | None:
    """Whose job it is, where it is not that of the account that sentinel runs as."""
    try:
        account = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        account = str(os.geteuid())
    if job.user in ("", account, str(os.geteuid())):
        return None
    return f"job {job.shown} belongs to {job.user}, and sentinel runs as {account}: run sentinel as {job.user}"
