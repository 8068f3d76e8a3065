"""A run's jobs in Slurm: found, recorded, cancelled with their successors, and submitted again in the same shape."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.records import JobRecords, Prepared, Submissions
from sentinel.plan.run_state import JobsSeen, WriterSeen
from sentinel.plan.slurm_jobs import Mark, SlurmJob, Submission, jobs_of_run, mark_in, marked, resubmission
from sentinel.vocabulary.errors import ConfigError, JobStillAlive, SlurmRefused, SlurmUnavailable
from sentinel.vocabulary.sample import RunStarted

__all__ = ["SlurmLauncher", "SlurmSettings"]

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 300.0
_BASH = ("#!/bin/bash", "#!/usr/bin/bash", "#!/usr/bin/env bash", "#!/bin/sh", "#!/usr/bin/sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """What the run's configuration says about its jobs."""

    run: str
    state_dir: Path
    job_name: str | None = None
    script: Path | None = None
    """What is submitted when no job of the run was ever seen."""

    sbatch_arguments: tuple[str, ...] = ()
    """Added to every submission, last: they win."""

    own_job: str | None = None
    """The job that sentinel itself runs in, which is not the run's."""

    query_interval_s: float = 15.0
    stop_grace_s: float = 60.0


class SlurmLauncher:
    """One run's jobs. What it did is never remembered, but looked for: in Slurm's queue and under the state folder."""

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._records = JobRecords(settings.state_dir / "jobs")
        self._submissions = Submissions(settings.state_dir / "submissions")
        self._queue: tuple[SlurmJob, ...] | SlurmUnavailable = ()
        self._ask_again_at: float | None = None
        self._pause_s = settings.query_interval_s

    def look(self, started: Sequence[RunStarted]) -> JobsSeen:
        """The run's jobs, from an answer of Slurm's that is at most query_interval_s old, longer while it is away."""
        now = self._clock()
        if self._ask_again_at is None or now >= self._ask_again_at:
            self._refresh()
        if isinstance(self._queue, SlurmUnavailable):
            return JobsSeen(known=False, why_unknown=str(self._queue), prepares=True)
        writers = tuple(WriterSeen(id=j.shown, rollback=_label(j), pending=j.waits) for j in self._of_run(started))
        prepared = self._submissions.labels()
        return JobsSeen(
            writers=writers,
            prepares=True,
            prepared=prepared,
            incomplete=frozenset(label for label in prepared if self._is_incomplete(label)),
        )

    def keep(self, started: Sequence[RunStarted]) -> None:
        """Records script and properties of the run's jobs that are not recorded yet: Slurm soon forgets ended ones."""
        for job in sorted(self._of_run(started), key=lambda job: job.waits):
            if not self._records.has(job.group):
                script, recorded = self._client.script(job.group), self._client.recorded(job.group)
                self._records.keep(job.group, script, recorded, job.tasks)

    def fenced(self, started: Sequence[RunStarted], spare: str | None) -> None:
        """Asks Slurm afresh; JobStillAlive when anything may write, or would begin to, but the spared rollback's."""
        left = [job for job in self._fresh(started) if spare is None or _label(job) != spare]
        if left:
            raise JobStillAlive(", ".join(f"job {job.shown} ({job.state})" for job in left))

    def prepare(self, rollback: str, started: Sequence[RunStarted]) -> None:
        """Writes what the rollback will submit, and has bash and Slurm check it; nothing is submitted."""
        if rollback in self._submissions.labels():
            return
        jobs = [job for job in self._fresh(started) if _label(job) != rollback]
        self.keep(started)
        self._prepare(rollback, resubmission(jobs) or (self._last_job(started),))

    def stop(self, started: Sequence[RunStarted], spare: str | None) -> None:
        """Cancels the run's jobs, those that wait first, and returns when all are seen gone. JobStillAlive if not."""
        self._ask_again_at = None
        left = [job for job in self._fresh(started) if spare is None or _label(job) != spare]
        self.keep(started)  # what a waiting job was to run is lost with it
        for group in _waiting_first(left):
            log.info("cancelling %s", ", ".join(job.shown for job in left if job.group == group))
            self._client.cancel(group)
        end, pause_s = self._clock() + self._settings.stop_grace_s, 0.25
        while not self._is_gone(started, spare, or_raise=self._clock() > end):
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)

    def _is_gone(self, started: Sequence[RunStarted], spare: str | None, *, or_raise: bool) -> bool:
        try:
            self.fenced(started, spare)
        except JobStillAlive:
            if or_raise:
                raise
            return False
        return True

    def start(self, incident: str | None, rollback: str | None, started: Sequence[RunStarted]) -> None:
        """Submits what was prepared, or what of it is missing: jobs of it that are there already are let be.

        Looks before each submission: sbatch may have submitted and lost its reply.
        """
        label = self._label_to_start(rollback, started)
        here = self._marked(self._fresh_queue(), label)
        before = self._submissions.submitted(label) if here else {}  # all gone: the whole of it again
        extra = {"SENTINEL_STATE_DIR": str(self._settings.state_dir)}
        extra |= {k: v for k, v in (("SENTINEL_INCIDENT", incident), ("SENTINEL_ROLLBACK", rollback)) if v}
        ids: dict[int, str] = {}
        for one in self._submissions.read(label):
            ids[one.number] = here.get(one.number) or before.get(one.number) or self._submit(label, one, ids, extra)
            self._submissions.note(label, before | ids)
        self._ask_again_at = None

    def _submit(self, label: str, one: Prepared, ids: dict[int, str], extra: dict[str, str]) -> str:
        comment = marked(one.comment, Mark(run=self._settings.run, label=label, number=one.number))
        dependency = one.dependency.format(*(ids[number] for number in sorted(ids)))
        arguments = [*one.arguments, f"--comment={comment}"]
        arguments += [f"--dependency={dependency}"] if dependency else []
        submitted = self._client.submit(arguments, one.script, one.script_arguments, extra)
        log.info("submitted job %s (%s)", submitted, comment)
        wanted = one.properties
        found = self._client.recorded(submitted).properties
        differences = wanted.differences(found, asked=self._settings.sbatch_arguments) if wanted is not None else ()
        if differences:
            self._client.cancel(submitted)
            raise SlurmRefused(
                f"job {submitted} came out otherwise than the one it stands in for, and was cancelled: "
                f"{'; '.join(differences)}; [launcher] sbatch_arguments can say what Slurm does not tell"
            )
        return submitted

    def _label_to_start(self, rollback: str | None, started: Sequence[RunStarted]) -> str:
        """What is prepared for the rollback; else, after a crash, the last job again, alone."""
        labels = self._submissions.labels()
        if rollback in labels:
            return str(rollback)
        last = self._last_job(started)
        label = rollback or f"restart-of-{last.group or 'none'}"
        if label not in labels:
            self._prepare(label, (last,))
        return label

    def _last_job(self, started: Sequence[RunStarted]) -> Submission:
        """The newest job that was seen of the run, with one task if it was an array's."""
        group = self._records.newest()
        if group is None:
            ended = {job.group: job for job in self._fresh_queue()}
            known = [word.partition("_")[0] for s in started if (word := s.job_id)]
            found = next((ended[i] for i in reversed(known) if i in ended), None)
            if found is None:
                return Submission(group="")
            self._records.keep(
                found.group, self._client.script(found.group), self._client.recorded(found.group), found.tasks
            )
            group = found.group
        _, seen = self._records.recorded(group)
        ran = [word.partition("_")[2] for s in started if (word := s.job_id or "").startswith(f"{group}_")]
        return Submission(group=group, array=ran[-1] if ran else seen)

    def _prepare(self, label: str, submissions: Sequence[Submission]) -> None:
        room = self._submissions.room(label)
        prepared = [self._made_ready(number, one, room) for number, one in enumerate(submissions)]
        for one in prepared:
            _check_syntax(one.script)
            self._client.test(one.arguments, one.script, one.script_arguments)
        self._submissions.publish(label, room, prepared)

    def _made_ready(self, number: int, submission: Submission, room: Path) -> Prepared:
        script = room / f"{number}.sh"
        more = list(self._settings.sbatch_arguments)
        if not submission.group:
            if self._settings.script is None:
                raise ConfigError(
                    "no job of this run was ever seen in Slurm; [launcher] script can name what to submit"
                )
            script.write_text(self._settings.script.read_text(encoding="utf-8"), encoding="utf-8")
            return Prepared(
                number=number,
                arguments=tuple(more),
                script=script,
                script_arguments=(),
                comment="",
                dependency="",
                properties=None,
            )
        recorded, _ = self._records.recorded(submission.group)
        script.write_text(self._records.script(submission.group), encoding="utf-8")
        arguments = recorded.properties.arguments()
        arguments += [f"--output={recorded.output}"] if recorded.output else []
        arguments += [f"--error={recorded.error}"] if recorded.error else []
        arguments += [f"--array={submission.array}"] if submission.array else []
        return Prepared(
            number=number,
            arguments=(*arguments, *more),
            script=script,
            script_arguments=recorded.script_arguments,
            comment=recorded.comment,
            dependency=submission.dependency,
            properties=recorded.properties,
        )

    def _refresh(self) -> None:
        try:
            self._queue = self._client.jobs()
            self._pause_s = self._settings.query_interval_s
        except SlurmUnavailable as error:
            self._queue = error
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._ask_again_at = self._clock() + self._pause_s

    def _fresh_queue(self) -> tuple[SlurmJob, ...]:
        self._refresh()
        if isinstance(self._queue, SlurmUnavailable):
            raise SlurmUnavailable(self._queue.call, self._queue.why)
        return self._queue

    def _fresh(self, started: Sequence[RunStarted]) -> tuple[SlurmJob, ...]:
        self._fresh_queue()
        return self._of_run(started)

    def _of_run(self, started: Iterable[RunStarted]) -> tuple[SlurmJob, ...]:
        return jobs_of_run(
            () if isinstance(self._queue, SlurmUnavailable) else self._queue,
            run=self._settings.run,
            known=[s.job_id for s in started if s.job_id],
            job_name=self._settings.job_name,
            but=[self._settings.own_job] if self._settings.own_job else [],
        )

    def _marked(self, queue: Iterable[SlurmJob], label: str) -> dict[int, str]:
        """Number -> id of the label's jobs that have not ended."""
        marks = [(job, mark_in(job.comment)) for job in queue if not job.ended]
        run = self._settings.run
        return {mark.number: job.group for job, mark in marks if mark and mark.run == run and mark.label == label}

    def _is_incomplete(self, label: str) -> bool:
        """Whether some of the label's jobs live while others were never handed in."""
        if isinstance(self._queue, SlurmUnavailable):
            return False
        here = self._marked(self._queue, label)
        there = here | self._submissions.submitted(label)
        return bool(here) and any(one.number not in there for one in self._submissions.read(label))


def _waiting_first(jobs: Sequence[SlurmJob]) -> list[str]:
    """Jobs and whole arrays in the order to cancel them: none begins because the one before it has ended."""
    groups = dict.fromkeys(job.group for job in jobs)
    return sorted(groups, key=lambda group: any(not job.waits for job in jobs if job.group == group))


def _label(job: SlurmJob) -> str | None:
    mark = mark_in(job.comment)
    return mark.label if mark and not mark.label.startswith("restart-of-") else None


def _check_syntax(script: Path) -> None:
    if not script.read_text(encoding="utf-8").startswith(_BASH):
        return
    try:
        command = ["/bin/bash", "-n", str(script)]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmRefused(f"bash could not check {script}: {error}") from error
    if checked.returncode:
        raise SlurmRefused(f"bash does not understand the script: {checked.stderr.strip()}")
