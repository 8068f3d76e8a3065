"""A run's jobs in Slurm: found, recorded, cancelled with their successors, and submitted again in the same shape."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.evidence import evidence_of
from sentinel.adapters.slurm.jobs import SlurmJob
from sentinel.adapters.slurm.named_jobs import groups_named
from sentinel.adapters.slurm.preparing import Preparation
from sentinel.adapters.slurm.queue import Queue, fate_of, foreign
from sentinel.adapters.slurm.records import JobRecords, Recording
from sentinel.adapters.slurm.submissions import SlurmSettings, Submissions, living, restart_of, rollback_of
from sentinel.adapters.slurm.whose_jobs import Found, jobs_of_run
from sentinel.jobscript.script_changes import CARRIED, baseline_of_script
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.observation import JobsSeen, ProcessState, StartSeen, WriterSeen
from sentinel.vocabulary.errors import ConfigError, JobStillAlive, JobUnclear, SlurmUnavailable
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

log = logging.getLogger(__name__)

_ASKED = 4  # of so many of the last attempts' jobs: what an older one was is known by its successors


class SlurmLauncher:
    """One run's jobs, by the interface of act.neighbours.Launcher. What it did is never remembered, but looked for: in
    Slurm's queue and under the state folder."""

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
        self._submissions = Submissions(settings.state_dir / "submissions")
        self._recording = Recording(client, self._shared, self._records, clock)
        self._preparation = Preparation(client, settings, self._records, self._submissions)
        self._evidence = evidence_of(client, settings, self._shared, self._records, self._preparation)
        # the user's, and the run's own, by the last answer; () while there is none
        self._jobs: tuple[SlurmJob, ...] = ()
        self._baseline: Baseline | None = None
        self._baseline_of: str | None = None

    def look(self, started: Sequence[RunStarted]) -> JobsSeen:
        """The run's jobs, from an answer of Slurm's that is at most query_interval_s old, longer while it is away."""
        try:
            self._jobs = self._with_named(self._shared.within(self._settings.query_interval_s), started)
            jobs = self._certainly_of_run(started)
        except (SlurmUnavailable, JobUnclear) as error:
            if isinstance(error, SlurmUnavailable):
                self._jobs = ()
            return JobsSeen(known=False, why_unknown=str(error), start=StartSeen(prepares=True))
        writers = tuple(
            WriterSeen(
                id=j.shown,
                rollback=rollback_of(j),
                pending=j.waits,
                foreign=foreign(j),
                remaining_s=None if j.waits else j.remaining_s,
            )
            for j in jobs
        )
        prepared = self._submissions.labels()
        return JobsSeen(
            writers=writers,
            start=StartSeen(
                prepares=True,
                prepared=prepared,
                restart_prepared=restart_of(self._records.newest()) in prepared,
                rewrites_script=self._settings.changes_in_script,
                carries=CARRIED if self._settings.changes_in_script else frozenset(),
                script_baseline=self._script_baseline(jobs) if self._settings.changes_in_script else None,
            ),
            was_seen=self._records.newest() is not None,
            process_states=self._fates(started),
            lost=self._lost(started),
            broken_off=self._broken_off(started),
            log_path=next((path for j in jobs if not j.waits and (path := self._records.log_of(j))), None),
            last_log=self._last_log(),
            incomplete=frozenset(
                label
                for label in prepared
                if self._submissions.is_incomplete(label, living(self._jobs, self._settings.run, label))
            ),
        )

    def _with_named(
        self, queue: tuple[SlurmJob, ...], started: Sequence[RunStarted], *, afresh: bool = False
    ) -> tuple[SlurmJob, ...]:
        """With the jobs that the run's attempts, records and submissions name and the user's queue does not show."""
        newest = self._records.newest()
        names = {*list(dict.fromkeys(reversed(groups_named(started))))[:_ASKED], *([newest] if newest else [])}
        names |= {job for ids in self._submitted().values() for job in ids}
        seen = {name for job in queue for name in (job.id, job.group)}
        named = self._shared.named
        age_s = self._settings.query_interval_s
        return (*queue, *(named.afresh(names - seen) if afresh else named.within(age_s, names - seen)))

    def _submitted(self) -> dict[str | None, list[str]]:
        """Rollback (None: a restart without one) -> jobs that were submitted for it last and that no record knows."""
        labels: dict[str | None, str] = {None: restart_of(self._records.newest())}
        labels |= {rollback: rollback for rollback in self._submissions.rollbacks()[-1:]}
        return {
            rollback: [job for job in self._submissions.submitted(label).values() if not self._records.has(job)]
            for rollback, label in labels.items()
        }

    def _lost(self, started: Sequence[RunStarted]) -> dict[str | None, str]:
        """The rollbacks whose submissions neither Slurm nor an attempt knows, with the sentence that says so."""
        seen = {name for job in self._jobs for name in (job.id, job.group)} | set(groups_named(started))
        return {
            rollback: f"sentinel submitted job {job}, which Slurm does not know and which has reported no start"
            for rollback, ids in self._submitted().items()
            for job in ids
            if job not in seen
        }

    def _last_log(self) -> str | None:
        newest = self._records.newest()
        jobs = [job for job in self._jobs if job.group == newest and not job.waits]
        return self._records.log_of(max(jobs, key=lambda job: int(job.id))) if jobs else None

    def _fates(self, started: Sequence[RunStarted]) -> dict[str | None, ProcessState]:
        names = {None: self._records.newest()} | {s.job_id: s.job_id for s in started if s.job_id}
        return {key: fate_of(name, self._jobs) for key, name in names.items() if name}

    def keep(self, started: Sequence[RunStarted]) -> None:
        self._recording.keep(self._of_run(started).jobs)
        ours = set(groups_named(started))
        self._recording.note_failed_nodes([job for job in self._jobs if ours & {job.id, job.group}])

    def keep_stacks(self, folder: Path) -> None:
        known = self._records.groups()
        for job in jobs_of_run(self._jobs, run=self._settings.run, known=known, job_name=None, but=()).jobs:
            try:
                stacks = self._client.stacks(job.id) if not job.waits else ""
                if stacks:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"{time.time():.0f}-{job.shown}.txt").write_text(stacks, encoding="utf-8")
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
        return next((job.state for job in self._jobs if last in (job.id, job.shown) and job.broken_off), None)

    def fenced(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        """Asks Slurm afresh; JobStillAlive when anything may write, or would begin to, but the spared rollback's."""
        if left := self._left(started, except_for):
            raise JobStillAlive(", ".join(f"job {job.shown} ({job.state})" for job in left))

    def preview(self, started: Sequence[RunStarted], overrides: Overrides) -> str | None:
        if not self._settings.changes_in_script:
            return None
        self._fresh(started)
        self.keep(started)
        group = self._records.newest()
        if group is None:
            return None
        return self._preparation.new_scripts(group, overrides=overrides, started=started).first.diff

    def prepare(self, rollback: str | None, started: Sequence[RunStarted], overrides: Overrides | None) -> None:
        """Writes what the rollback, or a restart, will submit, and has bash and Slurm check it. Submits nothing."""
        jobs = self._left(started, rollback)
        self._recording.keep(self._certainly_of_run(started), insist=True)
        label = rollback or restart_of(self._records.newest())
        if label not in self._submissions.labels():
            if jobs:
                shape = self._preparation.shape_of(jobs)
            elif rollback is not None:
                shape = self._preparation.shape_before(self._fresh_queue(), started)
            else:
                shape = (self._preparation.last_job(self._fresh_queue(), started),)
            self._preparation.prepare(label, shape, overrides, started)

    def start_commands(self, started: Sequence[RunStarted]) -> tuple[str, ...]:
        return self._preparation.commands(self._preparation.shape_before(self._fresh_queue(), started))

    def stop(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        self._shared.forget()
        left = self._left(started, except_for)
        self.keep(started)
        waiting = [job for job in self._certainly_of_run(started) if job.waits]
        self._recording.keep(waiting, insist=True)  # once they are cancelled, what they were to run is lost
        self._preparation.note_stopped(left)
        for group in _waiting_first(left):
            log.info("cancelling %s", ", ".join(job.shown for job in left if job.group == group))
            self._client.cancel(group)
        end, pause_s = self._clock() + self._settings.stop_grace_s, 0.25
        while True:
            is_last = self._clock() > end
            try:
                self.fenced(started, except_for)
            except JobStillAlive:
                if is_last:
                    raise
            else:
                return
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)

    def start(
        self, incident: str | None, rollback: str | None, started: Sequence[RunStarted], *, follow_up: bool
    ) -> None:
        """Submits what was prepared, or what of it is missing: jobs of it that are there already are let be.
        `follow_up`: the scripts without what is done once. Looks first: sbatch may have submitted and lost its
        reply."""
        label = self._label_to_start(rollback, started)
        here = living(self._fresh_queue(), self._settings.run, label)
        before = self._submissions.submitted(label) if here else {}  # all gone: the whole of it again
        extra = {"SENTINEL_STATE_DIR": str(self._settings.state_dir)}
        extra |= {k: v for k, v in (("SENTINEL_INCIDENT", incident), ("SENTINEL_ROLLBACK", rollback)) if v}
        extra |= self._settings.environment()
        ids: dict[int, str] = {}
        for prepared in self._submissions.read(label):
            one = replace(prepared, script=prepared.later) if follow_up and prepared.later else prepared
            ids[one.number] = (
                here.get(one.number) or before.get(one.number) or self._preparation.submit(label, one, ids, extra)
            )
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

    def _fresh_queue(self) -> tuple[SlurmJob, ...]:
        self._jobs = ()
        self._jobs = self._shared.afresh()
        return self._jobs

    def _fresh(self, started: Sequence[RunStarted]) -> tuple[SlurmJob, ...]:
        self._jobs = self._with_named(self._fresh_queue(), started, afresh=True)
        return self._certainly_of_run(started)

    def _left(self, started: Sequence[RunStarted], except_for: str | None) -> list[SlurmJob]:
        """The run's jobs, asked afresh, but those of the spared rollback."""
        return [job for job in self._fresh(started) if except_for is None or rollback_of(job) != except_for]

    def _certainly_of_run(self, started: Sequence[RunStarted]) -> tuple[SlurmJob, ...]:
        """JobUnclear where a job may be the run's or another run's."""
        found = self._of_run(started)
        if found.unclear is not None:
            raise JobUnclear(found.unclear)
        return found.jobs

    def _of_run(self, started: Iterable[RunStarted]) -> Found:
        return jobs_of_run(
            self._jobs,
            run=self._settings.run,
            known=[s.job_id for s in started if s.job_id],
            job_name=self._settings.job_name,
            but=[self._settings.own_job] if self._settings.own_job else [],
            evidence=self._evidence,
        )


def _waiting_first(jobs: Sequence[SlurmJob]) -> list[str]:
    """Jobs and whole arrays in the order to cancel them: none begins because the one before it has ended."""
    groups = dict.fromkeys(job.group for job in jobs)
    return sorted(groups, key=lambda group: any(not job.waits for job in jobs if job.group == group))
