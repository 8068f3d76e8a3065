"""Which of Slurm's jobs are the run's: by evidence for each; unknown where it fits another run as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sentinel.adapters.slurm.jobs import SlurmJob, mark_in, needs

_SETTLED = (
    "give this run a [launcher] job_name of its own, or leave the key out; [launcher] working_directory and script "
    "say where its first job is submitted, and what"
)


class Start(NamedTuple):
    """How a job of the run was submitted."""

    name: str  # As a person names it: `job 4711`, `[launcher] script`
    directory: str  # Its work directory
    runs: str | None  # What it runs, to be compared with Evidence.runs; None where that can't be read


def _unread(_: SlurmJob) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a job of the configured name is compared with. The functions are called for such jobs only, and for jobs
    that depend on one of the run's."""

    configured: Start | None = None  # By the configuration: counts while no job of the run is known
    recorded: Callable[[], Iterable[Start]] = tuple  # The jobs of the run that were seen before
    runs: Callable[[SlurmJob], str | None] = _unread  # Script and arguments as one text; None: can't be read
    same_place: Callable[[str, str], bool] = str.__eq__  # Whether two names are of one directory


class Found(NamedTuple):
    jobs: tuple[SlurmJob, ...]  # The run's, by id
    unclear: str | None  # A sentence on jobs that may be the run's or another's; None where there are none


def jobs_of_run(
    jobs: Iterable[SlurmJob],
    *,
    run: str,
    known: Iterable[str],
    job_name: str | None,
    but: Iterable[str],
    evidence: Evidence | None = None,
) -> Found:
    """The run's jobs that have not ended, by id: what may write, and what would begin when that is stopped.

    A job with another run's mark is never the run's. Else it is the run's with the rest of its array where sentinel has
    submitted it for this run; where a journal has named it (`known`: ids as `4711` or `7_2`); and where it has the
    configured name, and the work directory, and, where that can be read, the script of a job of the run. So is one that
    depends on a job of the run, has its work directory, and its name or its script. `but`: jobs that are not the run's
    whatever they are called, such as the one that sentinel itself runs in.
    """
    left_out = set(but)
    there = [job for job in jobs if job.id not in left_out and job.group not in left_out]
    return _Search(there, run, {word.partition("_")[0] for word in known}, job_name, evidence or Evidence()).found()


class _Search:
    def __init__(
        self, jobs: list[SlurmJob], run: str, named: set[str], job_name: str | None, evidence: Evidence
    ) -> None:
        self._run = run
        self._named = named
        self._job_name = job_name
        self._evidence = evidence
        self._jobs = jobs
        self._groups: dict[str, list[SlurmJob]] = {}
        for job in jobs:
            self._groups.setdefault(job.group, []).append(job)
        self._doubts: list[str] = []

    def found(self) -> Found:
        ours = {group for group in self._groups if self._is_proven(group)}
        certain = set(ours)
        ours |= self._by_name(certain)
        ours |= self._behind(ours)
        jobs = (job for job in self._jobs if job.group in ours and not job.ended)
        unclear = f"{'; '.join(self._doubts)}: {_SETTLED}" if self._doubts else None
        return Found(tuple(sorted(jobs, key=lambda job: int(job.id))), unclear)

    def _is_proven(self, group: str) -> bool:
        """By mark, or by the id that the run's journal names."""
        marked = self._marked_for(group)
        is_named = group in self._named or any(job.id in self._named for job in self._groups[group])
        if marked not in (None, self._run):
            if is_named and self._lives(group):
                self._doubts.append(
                    f"this run's journal names job {group}, which is marked as a job of run {marked} by its comment"
                )
            return False
        return is_named or marked is not None

    def _by_name(self, certain: set[str]) -> set[str]:
        """The groups of the configured name that were submitted like a job of the run."""
        candidates = [
            group
            for group, (job, *_) in self._groups.items()
            if job.name == self._job_name
            and group not in certain
            and self._marked_for(group) is None
            and self._lives(group)
        ]
        if not candidates:
            return set()
        started = [self._start(self._groups[group][0]) for group in certain] + list(self._evidence.recorded())
        is_alone = not started  # No job of the run is known: what the configuration says is all there is
        if is_alone and self._evidence.configured is not None:
            started = [self._evidence.configured]
        alike = {group for group in candidates if self._is_like(group, started, may_be_moved=is_alone)}
        alike -= self._behind(certain)
        self._compare(alike, certain)
        return alike

    def _is_like(self, group: str, started: list[Start], *, may_be_moved: bool) -> bool:
        job = self._groups[group][0]
        here = [one for one in started if self._evidence.same_place(one.directory, job.directory)]
        if not here:
            if may_be_moved:
                where = f"not in {started[0].directory} ({started[0].name})" if started else "this run's is not known"
                self._doubts.append(f"job {group} has this run's job name, and works in {job.directory}, {where}")
            return False
        scripts = {one.runs for one in here}
        runs = self._evidence.runs(job)
        if runs is None or None in scripts or runs in scripts:
            return True
        self._doubts.append(
            f"job {group} has the name and the work directory of {here[-1].name}, and another script or other arguments"
        )
        return False

    def _compare(self, alike: set[str], certain: set[str]) -> None:
        """One run's jobs run one after the other: two at once are two runs'. So are two scripts."""
        running = sorted((g for g in alike if self._runs_now(g)), key=int)
        beside = sorted((g for g in certain if self._runs_now(g)), key=int)
        if running and len(running) + len(beside) > 1:
            names = " and ".join(f"job {group}" for group in (*beside, *running))
            self._doubts.append(f"{names} run at once under one name, and may be two runs")
            return
        scripts = {runs: group for group in sorted(alike, key=int) if (runs := self._runs(group)) is not None}
        if not certain and len(scripts) > 1:
            names = " and ".join(f"job {group}" for group in sorted(scripts.values(), key=int))
            self._doubts.append(f"{names} have one name, and different scripts or arguments")

    def _behind(self, ours: set[str]) -> set[str]:
        """What depends on the run's jobs, link by link, and was submitted like the one that it waits for."""
        found = set(ours)
        for_later = sorted(self._groups.keys() - found, key=int)
        while True:
            links = {group for group in for_later if group not in found and self._continues(group, found)}
            if not links:
                return found - ours
            found |= links

    def _continues(self, group: str, ours: set[str]) -> bool:
        if self._marked_for(group) is not None or not self._lives(group):
            return False
        job = self._groups[group][0]
        before = {word for one in self._groups[group] for word in needs(one.dependency)}
        links = [one for one in self._jobs if {one.id, one.group} & before and one.group in ours]
        links = [one for one in links if self._evidence.same_place(one.directory, job.directory)]
        if not links:
            return False
        scripts = {self._runs(one.group) for one in links}
        runs = self._evidence.runs(job)
        if runs is not None and runs in scripts:
            return True
        if not any(one.name == job.name for one in links):
            return False
        if runs is None or None in scripts:
            return True
        doubt = (
            f"job {group} waits for job {links[0].group}, with its name and its work directory, and has another script "
            "or other arguments"
        )
        if doubt not in self._doubts:
            self._doubts.append(doubt)
        return False

    def _start(self, job: SlurmJob) -> Start:
        return Start(f"job {job.group}", job.directory, self._evidence.runs(job))

    def _runs(self, group: str) -> str | None:
        return self._evidence.runs(self._groups[group][0])

    def _marked_for(self, group: str) -> str | None:
        marks = (mark_in(job.comment) for job in self._groups[group])
        return next((mark.run for mark in marks if mark is not None), None)

    def _lives(self, group: str) -> bool:
        return not all(job.ended for job in self._groups[group])

    def _runs_now(self, group: str) -> bool:
        """COMPLETING runs beside its successor for a while."""
        return any(not (job.waits or job.ended or job.state == "COMPLETING") for job in self._groups[group])
