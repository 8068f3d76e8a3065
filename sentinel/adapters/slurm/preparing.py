"""Makes ready what a restart will submit: scripts, arguments and shapes, checked by bash and by Slurm."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.slurm.client import Recorded, SlurmClient
from sentinel.adapters.slurm.jobs import (
    JobProperties,
    Mark,
    SlurmJob,
    Submission,
    mark_in,
    marked,
    resubmission,
    unmarked,
    with_own_head,
)
from sentinel.adapters.slurm.records import JobRecords, Stopped
from sentinel.adapters.slurm.submissions import Prepared, SlurmSettings, Submissions
from sentinel.adapters.slurm.trainer_files import scheduler_of, with_named_files
from sentinel.jobscript.syntax import to_bytes
from sentinel.lint import KnownSettings, NewScripts, new_scripts
from sentinel.plan.incident.baseline import baseline_of
from sentinel.vocabulary.errors import ConfigError, SlurmRefused
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

log = logging.getLogger(__name__)

_BASH = (b"#!/bin/bash", b"#!/usr/bin/bash", b"#!/usr/bin/env bash", b"#!/bin/sh", b"#!/usr/bin/sh")
_TIMEOUT_S = 20.0
_Changed = Callable[[str], NewScripts]  # a job -> its script with a decision in it


class Preparation:
    """Writes STATE_DIR/submissions/LABEL, whole or not at all; and submits what was written."""

    def __init__(
        self, client: SlurmClient, settings: SlurmSettings, records: JobRecords, submissions: Submissions
    ) -> None:
        self._client = client
        self._settings = settings
        self._records = records
        self._submissions = submissions

    def prepare(
        self,
        label: str,
        submissions: Sequence[Submission],
        overrides: Overrides | None = None,
        started: Sequence[RunStarted] = (),
    ) -> None:
        """Makes the submissions ready under the label, with a rollback's changes where they belong in the script.
        SlurmRefused when bash or Slurm would not have them; ScriptRefused, ConfigError for what can't be changed."""
        changed = None
        if overrides is not None and self._settings.changes_in_script:
            changed = partial(self.new_scripts, overrides=overrides, started=started)
        room, shape = self._submissions.room(label), submissions
        if changed is not None:
            submissions = with_own_head(submissions)
        prepared = [self._made_ready(number, one, room, changed) for number, one in enumerate(submissions)]
        for one in prepared:
            for script in (one.script, one.later):
                if script is not None:
                    check_script(room / script, room / f"{one.number}.original.sh")
            self._client.test(one.arguments, room / one.script, one.script_arguments)
        self._submissions.publish(label, room, prepared, shape)

    def submit(self, label: str, one: Prepared, ids: Mapping[int, str], extra: Mapping[str, str]) -> str:
        """Submits one of the label's jobs, `ids` being those of the earlier ones; returns its id. SlurmRefused when it
        came out otherwise than the job that it stands in for: then it is cancelled."""
        comment = marked(one.comment, Mark(run=self._settings.run, label=label, number=one.number))
        dependency = one.dependency.format(*(ids[number] for number in sorted(ids)))
        arguments = [*one.arguments, f"--comment={comment}"] + ([f"--dependency={dependency}"] if dependency else [])
        script = self._submissions.script_file(label, one)
        submitted = self._client.submit(arguments, script, one.script_arguments, extra)
        log.info("submitted job %s (%s)", submitted, comment)
        wanted, found = one.properties, self._client.recorded(submitted).properties
        asked = self._settings.sbatch_arguments
        if wanted is not None and (differences := wanted.differences(found, asked=asked)):
            self._client.cancel(submitted)
            raise SlurmRefused(
                f"job {submitted} differs from the job that it replaces, and was cancelled: "
                f"{'; '.join(differences)}; add what Slurm does not show to [launcher] sbatch_arguments"
            )
        return submitted

    def original(self, group: str) -> str:
        """The run's own script behind a job, before any rollback changed it, with the files that its trainer is given
        inside: a change of them is then one of the script."""
        text = self.own_script(group)
        folder = Path(self._records.recorded(group).properties.working_directory)
        return with_named_files(text, folder, f"{self._settings.state_dir}/submissions/{group}-")

    def own_script(self, group: str) -> str:
        """The same, as its file is."""
        return bounded.read_text(self._original_file(group), errors="surrogateescape")

    def new_scripts(self, group: str, *, overrides: Overrides, started: Sequence[RunStarted]) -> NewScripts:
        """A decision in the run's own script behind a job, as `lint.new_scripts` makes it."""
        original, folder = self.original(group), self._records.recorded(group).properties.working_directory
        scheduler = scheduler_of(original, Path(folder), self._settings.scheduler_override)
        with_it = next((one for one in reversed(started) if one.rollback is None), None)
        return new_scripts(original, overrides, KnownSettings(scheduler=scheduler, reported=baseline_of(with_it)))

    def shape_of(self, jobs: Sequence[SlurmJob]) -> tuple[Submission, ...]:
        """The shape of jobs that are in the queue."""
        recorded = {group: self._records.recorded(group) for group in {job.group for job in jobs}}
        return resubmission(jobs, {group: one.properties.array_throttle for group, one in recorded.items()})

    def shape_before(self, queue: Sequence[SlurmJob], started: Sequence[RunStarted]) -> tuple[Submission, ...]:
        """The shape to start in when nothing of the run is in the queue: of what was stopped, or of the last job with
        all that was submitted with it: the array's other tasks, what its rollback was submitted for."""
        last, stopped = self.last_job(queue, started), self._records.stopped()
        if last.group in stopped.groups:
            return stopped.shape
        if not last.group:
            return (last,)
        recorded = self._records.recorded(last.group)
        mark = mark_in(recorded.comment)
        shape = self._submissions.shape(mark.label) if mark else ()
        return shape or (replace(last, array=recorded.array or ""),)

    def note_stopped(self, jobs: Sequence[SlurmJob]) -> None:
        """Records the shape of jobs that are about to be cancelled; of a rollback's jobs, of what they stood in for. A
        stop that is repeated finds fewer jobs: the first record counts."""
        groups = {job.group for job in jobs}
        if groups <= set(self._records.stopped().groups) or not all(self._records.has(group) for group in groups):
            return
        labels = {mark.label if (mark := mark_in(job.comment)) else None for job in jobs}
        label = labels.pop() if len(labels) == 1 else None
        shape = (self._submissions.shape(label) if label else ()) or self.shape_of(jobs)
        self._records.note_stopped(Stopped(groups=tuple(sorted(groups)), shape=shape))

    def commands(self, submissions: Sequence[Submission]) -> tuple[str, ...]:
        """What a person types to submit these: the run's own scripts, with nothing changed. One line each."""
        named = f"SENTINEL_STATE_DIR={shlex.quote(str(self._settings.state_dir))}"
        lines = []
        for number, one in enumerate(submissions):
            dependency = one.dependency.format(*(f"$job{n}" for n in range(number)))
            line = f"{named} sbatch --parsable" + (f' --dependency="{dependency}"' if dependency else "")
            line = f"{line} {shlex.join(self._words(one))}"
            lines.append(f"job{number}=$({line})" if len(submissions) > 1 else line)
        return tuple(lines)

    def last_job(self, queue: Sequence[SlurmJob], started: Sequence[RunStarted]) -> Submission:
        """The newest job that was seen of the run, with one task if it was an array's; without a group if none was."""
        group = self._records.newest()
        if group is None:
            known = [word.partition("_")[0] for s in started if (word := s.job_id)]
            there = {job.group for job in queue}
            group = next((known_group for known_group in reversed(known) if known_group in there), None)
            if group is None:
                return Submission(group="")
            members = [job for job in queue if job.group == group]
            self._records.keep(group, self._client.script(group), self._client.recorded(group), members)
        ran = [word.partition("_")[2] for s in started if (word := s.job_id or "").startswith(f"{group}_")]
        return Submission(group=group, array=ran[-1] if ran else self._records.recorded(group).tasks)

    def _original_file(self, group: str) -> Path:
        mark = mark_in(self._records.recorded(group).comment)
        before = self._submissions.original_file(mark.label, mark.number) if mark else None
        return before or self._records.script_file(group)

    def _script_of_configuration(self) -> tuple[Path, list[str]]:
        """What is submitted where no job was seen, and its arguments for sbatch."""
        settings = self._settings
        if settings.script is None:
            raise ConfigError("no job of this run was ever seen in Slurm; [launcher] script can name what to submit")
        return settings.script, [f"--chdir={settings.working_directory or Path.cwd()}", *settings.sbatch_arguments]

    def _words(self, submission: Submission) -> list[str]:
        """sbatch's options, the script and its arguments."""
        if not submission.group:
            script, arguments = self._script_of_configuration()
            return [*arguments, str(script)]
        recorded = self._records.recorded(submission.group)
        own = unmarked(recorded.comment)
        options = [*_arguments(recorded, submission), *([f"--comment={own}"] if own else [])]
        script = self._original_file(submission.group)
        return [*options, *self._settings.sbatch_arguments, str(script), *recorded.script_arguments]

    def _made_ready(self, number: int, submission: Submission, room: Path, changed: _Changed | None) -> Prepared:
        if not submission.group:
            own, arguments = self._script_of_configuration()
            script = f"{number}.sh"
            (room / script).write_bytes(bounded.read_document(own))
            return Prepared(number=number, arguments=tuple(arguments), script=script)
        recorded = self._records.recorded(submission.group)
        properties = replace(self._without_failed_nodes(recorded.properties), array_throttle=submission.throttle)
        script, later = self._write(number, submission.group, room, changed)
        if later is not None:  # a requeue would do once more what is done once
            properties = replace(properties, requeue=False)
        recorded = replace(recorded, properties=properties)
        return Prepared(
            number=number,
            arguments=(*_arguments(recorded, submission), *self._settings.sbatch_arguments),
            script=script,
            later=later,
            script_arguments=recorded.script_arguments,
            comment=recorded.comment,
            dependency=submission.dependency,
            properties=properties,
        )

    def _write(self, number: int, group: str, room: Path, changed: _Changed | None) -> tuple[str, str | None]:
        """The script, and the one for later starts, where they are two."""
        script, later = f"{number}.sh", f"{number}.later.sh"
        if changed is None:
            (room / script).write_bytes(to_bytes(self._records.script(group)))
            return script, None
        original = self.original(group)
        new = changed(group)
        for remark in new.remarks:
            log.warning("the changed run: %s", remark)
        mine = new.first if number == 0 else new.later
        (room / script).write_bytes(to_bytes(mine.text))
        (room / f"{number}.original.sh").write_bytes(to_bytes(original))
        (room / f"{number}.diff").write_bytes(to_bytes(mine.diff))
        if new.later.text == mine.text:
            return script, None
        (room / later).write_bytes(to_bytes(new.later.text))
        return script, later

    def _without_failed_nodes(self, properties: JobProperties) -> JobProperties:
        """Leaves out nodes that failed again and again; those that the job already leaves out stay so."""
        often, failures = self._settings.exclude_after_failures, self._records.node_failures()
        failed = [node for node, jobs in failures.items() if len(jobs) >= often and node != "unknown"]
        left_out = [node for node in (properties.excluded_nodes, *failed) if node]
        return replace(properties, excluded_nodes=",".join(left_out)) if failed else properties


def _arguments(recorded: Recorded, submission: Submission) -> list[str]:
    """For sbatch, without comment and dependency."""
    arguments = recorded.properties.arguments()
    arguments += [f"--output={recorded.output}"] if recorded.output else []
    arguments += [f"--error={recorded.error}"] if recorded.error else []
    return arguments + ([f"--array={submission.array}"] if submission.array else [])


def check_script(script: Path, original: Path) -> None:
    """SlurmRefused when bash does not understand the script, or shellcheck finds an error that the original has not.
    Neither runs it. What the run has lived with so far is no reason to leave it stopped. `original` need not be
    there."""
    if not bounded.read_document(script).startswith(_BASH):
        return
    try:
        command = ["/bin/bash", "-n", str(script)]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmRefused(f"bash could not check {script}: {error}") from error
    if checked.returncode:
        raise SlurmRefused(f"bash does not understand the script: {checked.stderr.strip()}")
    if original.exists() and (brought_in := _errors(script) - _errors(original)):
        raise SlurmRefused(f"shellcheck finds what the run's own script has not: {min(brought_in)}")


def _errors(script: Path) -> Counter[str]:
    """Shellcheck's errors, each as often as it is found; none where it is not installed, or does not answer."""
    program = shutil.which("shellcheck")
    if program is None:
        return Counter()
    try:
        command = [program, "--severity=error", "--format=json", str(script)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stdout
        return Counter(f"SC{finding['code']}: {finding['message']}" for finding in json.loads(found))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return Counter()
