"""A run's jobs in Slurm: found, recorded, cancelled with their successors, and submitted again in the same shape."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.named import (
    NamedJobs,
    fate_of_group,
    fates_of,
    foreign,
    groups_of,
    lost,
    submitted_last,
)
from sentinel.adapters.slurm.preparing import Preparation, restart_of
from sentinel.adapters.slurm.queue import Jobs, Queue
from sentinel.adapters.slurm.recording import Recording
from sentinel.adapters.slurm.records import JobRecords, NodeFailures, Prepared, Submissions
from sentinel.adapters.slurm.settings import SlurmSettings
from sentinel.adapters.slurm.shapes import Shapes
from sentinel.jobscript.script_changes import CARRIED, baseline_of_script
from sentinel.jobscript.slurm_jobs import Mark, SlurmJob, jobs_of_run, mark_in, marked
from sentinel.lint import new_scripts
from sentinel.plan.baseline import Baseline
from sentinel.plan.observation import Fate, JobsSeen, WriterSeen
from sentinel.vocabulary.errors import ConfigError, JobStillAlive, SlurmRefused, SlurmUnavailable
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

__all__ = ["SlurmLauncher"]

log = logging.getLogger(__name__)


class SlurmLauncher:
    """One run's jobs. What it did is never remembered, but looked for: in Slurm's queue and under the state folder."""

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        *,
        queue: Queue | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._shared = queue or Queue(client, clock)
        self._records = JobRecords(settings.state_dir / "jobs")
        self._failures = NodeFailures(settings.state_dir / "nodes.json")
        self._submissions = Submissions(settings.state_dir / "submissions")
        self._recording = Recording(client, self._shared, self._records, self._failures)
        self._preparation = Preparation(client, settings, self._records, self._failures, self._submissions)
        self._by_id = NamedJobs(client, settings.query_interval_s, clock)
        stopped = settings.state_dir / "jobs" / "stopped.json"
        self._shapes = Shapes(stopped, self._records, self._submissions, self._preparation)
        self._queue: Jobs = ()
        self._baseline: Baseline | None = None
        self._baseline_of: str | None = None

    def look(self, started: Sequence[RunStarted]) -> JobsSeen:
        """The run's jobs, from an answer of Slurm's that is at most query_interval_s old, longer while it is away."""
        self._queue = self._with_named(self._shared.within(self._settings.query_interval_s), started)
        if isinstance(self._queue, SlurmUnavailable):
            return JobsSeen(known=False, why_unknown=str(self._queue), prepares=True)
        jobs = self._of_run(started)
        writers = tuple(WriterSeen(id=j.shown, rollback=_label(j), pending=j.waits, foreign=foreign(j)) for j in jobs)
        prepared = self._submissions.labels()
        return JobsSeen(
            writers=writers,
            prepares=True,
            prepared=prepared,
            restart_prepared=restart_of(self._records.newest()) in prepared,
            rewrites_script=self._settings.changes_in_script,
            carries=CARRIED if self._settings.changes_in_script else frozenset(),
            script_baseline=self._script_baseline(jobs) if self._settings.changes_in_script else None,
            was_seen=self._records.newest() is not None,
            fates=self._fates(started, self._queue),
            lost=lost(self._submitted(), started, self._queue),
            broken_off=self._broken_off(started),
            log_path=next((path for j in jobs if not j.waits and (path := self._log_of(j))), None),
            incomplete=frozenset(label for label in prepared if self._is_incomplete(label)),
        )

    def _with_named(self, queue: Jobs, started: Sequence[RunStarted], *, afresh: bool = False) -> Jobs:
        """With the jobs that the run's attempts, records and submissions name and the user's queue does not show."""
        if isinstance(queue, SlurmUnavailable):
            return queue
        newest = self._records.newest()
        names = {*groups_of(started), *([newest] if newest else [])}
        names |= {job for ids in self._submitted().values() for job in ids}
        try:
            return (*queue, *self._by_id.beside(queue, names, afresh=afresh))
        except SlurmUnavailable as error:
            return error

    def _submitted(self) -> dict[str | None, list[str]]:
        return submitted_last(self._records, self._submissions)

    def _fates(self, started: Sequence[RunStarted], queue: Sequence[SlurmJob]) -> dict[str | None, Fate]:
        newest = self._records.newest()
        of_last: dict[str | None, Fate] = {None: fate_of_group(newest, queue)} if newest else {}
        return of_last | fates_of(started, queue)

    def keep(self, started: Sequence[RunStarted]) -> None:
        """Records what a later start of the run's jobs will need, and which nodes took one with them."""
        self._recording.keep(self._of_run(started))
        ours = {word.partition("_")[0] for s in started if (word := s.job_id)}
        if isinstance(self._queue, SlurmUnavailable):
            return
        queue = self._queue
        self._recording.note_failed_nodes([job for job in queue if ours & {job.id, job.group}])

    def keep_stacks(self, folder: Path) -> None:
        """What py-spy shows of the running jobs' processes, where it is installed on their nodes. Never raises."""
        queue = () if isinstance(self._queue, SlurmUnavailable) else self._queue
        for job in jobs_of_run(queue, run=self._settings.run, known=self._records.groups(), job_name=None, but=()):
            try:
                told = self._client.stacks(job.id) if not job.waits else ""
                if told:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"{time.time():.0f}-{job.shown}.txt").write_text(told, encoding="utf-8")
            except (SlurmUnavailable, OSError) as error:
                log.warning("the stacks of job %s can't be had: %s", job.shown, error)

    def _script_baseline(self, jobs: Sequence[SlurmJob]) -> Baseline | None:
        """What the run's own script asks for, read once for each new job; None where it can't be read."""
        with contextlib.suppress(SlurmUnavailable, OSError):
            self._recording.keep(jobs)
        group = self._records.newest()
        if group is not None and group != self._baseline_of:
            self._baseline_of, self._baseline = group, None
            try:
                self._baseline = baseline_of_script(self._preparation.original(group))
            except ConfigError as error:
                log.warning("the script of job %s: %s", group, error)
        return self._baseline

    def _broken_off(self, started: Sequence[RunStarted]) -> str | None:
        last = next((s.job_id for s in reversed(started) if s.job_id), None)
        queue = () if isinstance(self._queue, SlurmUnavailable) else self._queue
        return next((job.state for job in queue if last in (job.id, job.shown) and job.broken_off), None)

    def _log_of(self, job: SlurmJob) -> str | None:
        """Where the job's output goes, by the pattern that it was submitted with."""
        if not self._records.has(job.group):
            return None
        recorded, _ = self._records.recorded(job.group)
        known = {"A": job.group, "a": job.tasks or "4294967294", "j": job.id, "x": job.name, "u": job.user, "%": "%"}
        pattern = recorded.output or ("slurm-%A_%a.out" if job.array else "slurm-%j.out")
        name = re.sub(r"%(\d*)([AajxuN%])", lambda m: known.get(m[2], m[0]).rjust(int(m[1] or 0), "0"), pattern)
        return str(Path(recorded.properties.working_directory) / name)

    def fenced(self, started: Sequence[RunStarted], spare: str | None) -> None:
        """Asks Slurm afresh; JobStillAlive when anything may write, or would begin to, but the spared rollback's."""
        left = [job for job in self._fresh(started) if spare is None or _label(job) != spare]
        if left:
            raise JobStillAlive(", ".join(f"job {job.shown} ({job.state})" for job in left))

    def preview(self, started: Sequence[RunStarted], overrides: Overrides) -> str | None:
        """How the job script would be changed, as a diff; None where it is not. ScriptRefused, ConfigError."""
        if not self._settings.changes_in_script:
            return None
        self._fresh(started)
        self.keep(started)
        group = self._records.newest()
        return None if group is None else new_scripts(self._preparation.original(group), overrides).first.diff

    def prepare(self, rollback: str | None, started: Sequence[RunStarted], overrides: Overrides | None) -> None:
        """Writes what the rollback, or a restart, will submit, and has bash and Slurm check it. Submits nothing."""
        jobs = [job for job in self._fresh(started) if rollback is None or _label(job) != rollback]
        self._recording.insist(self._of_run(started))
        label = rollback or restart_of(self._records.newest())
        if label not in self._submissions.labels():
            if jobs:
                shape = self._shapes.of(jobs)
            elif rollback is not None:
                shape = self._shapes.before(self._fresh_queue(), started)
            else:
                shape = (self._preparation.last_job(self._fresh_queue(), started),)
            self._preparation.prepare(label, shape, overrides)

    def start_commands(self, started: Sequence[RunStarted]) -> tuple[str, ...]:
        """What a person types to submit the run's jobs again as they were before they were stopped, one line each."""
        return self._preparation.commands(self._shapes.before(self._fresh_queue(), started))

    def stop(self, started: Sequence[RunStarted], spare: str | None) -> None:
        """Cancels the run's jobs, those that wait first, and returns when all are seen gone. JobStillAlive if not."""
        self._shared.forget()
        left = [job for job in self._fresh(started) if spare is None or _label(job) != spare]
        self.keep(started)
        self._recording.insist([job for job in self._of_run(started) if job.waits])  # what they were to run is lost
        self._shapes.note(left)
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

    def start(
        self, incident: str | None, rollback: str | None, started: Sequence[RunStarted], *, follow_up: bool
    ) -> None:
        """Submits what was prepared, or what of it is missing: jobs of it that are there already are let be.

        `follow_up`: the scripts without what is done once.

        Looks before each submission: sbatch may have submitted and lost its reply.
        """
        label = self._label_to_start(rollback, started)
        here = self._marked(self._fresh_queue(), label)
        before = self._submissions.submitted(label) if here else {}  # all gone: the whole of it again
        extra = {"SENTINEL_STATE_DIR": str(self._settings.state_dir)}
        extra |= {k: v for k, v in (("SENTINEL_INCIDENT", incident), ("SENTINEL_ROLLBACK", rollback)) if v}
        ids: dict[int, str] = {}
        for prepared in self._submissions.read(label):
            one = replace(prepared, script=prepared.later) if follow_up and prepared.later else prepared
            ids[one.number] = here.get(one.number) or before.get(one.number) or self._submit(label, one, ids, extra)
            self._submissions.note(label, before | ids)
        self._shared.forget()

    def _label_to_start(self, rollback: str | None, started: Sequence[RunStarted]) -> str:
        """What is prepared for the rollback; else, after a crash, the last job again, alone."""
        labels = self._submissions.labels()
        if rollback in labels:
            return str(rollback)
        last = self._preparation.last_job(self._fresh_queue(), started)
        label = rollback or restart_of(last.group or None)
        if label not in labels:
            self._preparation.prepare(label, (last,))
        return label

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

    def _fresh_queue(self) -> tuple[SlurmJob, ...]:
        self._queue = self._shared.afresh()
        if isinstance(self._queue, SlurmUnavailable):
            raise SlurmUnavailable(self._queue.call, self._queue.why)
        return self._queue

    def _fresh(self, started: Sequence[RunStarted]) -> tuple[SlurmJob, ...]:
        self._queue = self._with_named(self._fresh_queue(), started, afresh=True)
        if isinstance(self._queue, SlurmUnavailable):
            raise SlurmUnavailable(self._queue.call, self._queue.why)
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
    return mark.label if mark and not mark.label.startswith(restart_of("")) else None
