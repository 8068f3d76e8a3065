"""Jobs by id, whoever's they are: one query for all that a daemon's runs name and no account's own queue shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Lock
from typing import NamedTuple

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.jobs import SlurmJob
from sentinel.vocabulary.errors import SlurmUnavailable
from sentinel.vocabulary.sample import RunStarted

_LONGEST_PAUSE_S = 300.0
_ABSENT_FOR = 20  # query intervals for which an id that Slurm does not know is not asked again: ids do not come back
_NAMED_FOR_S = 300.0  # for which an id is asked along: a run may look more rarely than its answers grow old
_FORGOTTEN_AFTER_S = 3600.0  # for ids that no run names any more
_ASKED_ALONG = 0.5  # share of its interval after which an id is asked along with one that is due


def pause_s(interval_s: float, failures: int) -> float:
    """Seconds from one query to the next, after so many queries without an answer, one after the other."""
    longest_s = max(interval_s, _LONGEST_PAUSE_S)
    return min(interval_s * 2.0 ** min(failures, 30), longest_s) if failures else interval_s


class _Answer(NamedTuple):
    jobs: tuple[SlurmJob, ...]
    asked_s: float
    failures: int = 0  # queries without an answer, one after the other
    away: SlurmUnavailable | None = None  # why there was none: then nothing is known of the id

    def known(self) -> tuple[SlurmJob, ...]:
        if self.away is not None:
            raise SlurmUnavailable(self.away.asked, self.away.why)
        return self.jobs

    def is_older_than(self, interval_s: float, now_s: float, share: float = 1.0) -> bool:
        due_s = pause_s(interval_s, self.failures)
        if self.away is None and not self.jobs:
            due_s *= _ABSENT_FOR
        return now_s >= self.asked_s + share * due_s


class NamedJobs:
    """Shared by all runs of a daemon. A query asks for every id that is due, and for those that are nearly due: so the
    ids of many runs come to be asked for together, whenever each was named first.

    A query without an answer makes the state of all ids that it asked for unknown (SlurmUnavailable) until the next
    one, which comes ever later; no id is absent because of it.
    """

    def __init__(self, client: SlurmClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._answers: dict[str, _Answer] = {}
        self._named: dict[str, tuple[float, float]] = {}  # id -> when it was last named, and the interval asked for
        self._naming = Lock()
        self._asking = Lock()

    def within(self, age_s: float, groups: Collection[str]) -> tuple[SlurmJob, ...]:
        """The jobs and arrays of these ids, by answers at most so old (20 times so old where Slurm did not
        know the id). Older while another run asks: only an id that has no answer yet waits for that."""
        self._name(groups, age_s)
        unanswered = any(group not in self._answers for group in groups)
        if self._due(groups, age_s) and self._asking.acquire(blocking=unanswered):
            try:
                if due := self._due(groups, age_s):  # another run's query may have asked for them meanwhile
                    self._ask(due | self._nearly_due())
            finally:
                self._asking.release()
        return self._of(groups)

    def afresh(self, groups: Collection[str]) -> tuple[SlurmJob, ...]:
        """As Slurm answers now. SlurmUnavailable where it does not."""
        with self._asking:
            if groups:
                self._ask(set(groups))
            return self._of(groups)

    def groups(self) -> set[str]:
        """What runs have named of late, and Slurm knew."""
        return {group for group, answer in self._answers.copy().items() if answer.jobs}

    def _name(self, groups: Iterable[str], age_s: float) -> None:
        with self._naming:
            self._named.update(dict.fromkeys(groups, (self._clock(), age_s)))

    def _due(self, groups: Iterable[str], age_s: float) -> set[str]:
        now_s, answers = self._clock(), self._answers
        return {g for g in groups if (last := answers.get(g)) is None or last.is_older_than(age_s, now_s)}

    def _nearly_due(self) -> set[str]:
        """Of the ids that some run has named of late; the others are forgotten after a while."""
        now_s = self._clock()
        with self._naming:
            forgotten_s = now_s - _FORGOTTEN_AFTER_S
            self._named = {g: n for g, n in self._named.items() if n[0] + n[1] > forgotten_s}
            named = {
                g: age_s for g, (named_s, age_s) in self._named.items() if now_s <= named_s + max(age_s, _NAMED_FOR_S)
            }
            self._answers = {g: answer for g, answer in self._answers.items() if g in self._named}
        answers = self._answers
        return {
            g
            for g, age_s in named.items()
            if (last := answers.get(g)) is None or last.is_older_than(age_s, now_s, _ASKED_ALONG)
        }

    def _ask(self, groups: set[str]) -> None:
        asked_s = self._clock()
        before = max((last.failures for g in groups if (last := self._answers.get(g)) is not None), default=0)
        try:
            found = self._client.jobs_by_id(groups)
        except SlurmUnavailable as error:
            self._answers |= dict.fromkeys(groups, _Answer((), self._clock(), before + 1, error))
        else:
            of: dict[str, list[SlurmJob]] = {group: [] for group in groups}
            for job in found:
                for name in {job.id, job.group} & of.keys():
                    of[name].append(job)
            self._answers |= {g: _Answer(tuple(jobs), asked_s) for g, jobs in of.items()}

    def _of(self, groups: Iterable[str]) -> tuple[SlurmJob, ...]:
        answers = self._answers
        return tuple({job.id: job for group in groups for job in answers[group].known()}.values())


def groups_named(started: Sequence[RunStarted]) -> list[str]:
    """Jobs and arrays that attempts have named, the newest last."""
    return [s.job_id.partition("_")[0] for s in started if s.job_id]
