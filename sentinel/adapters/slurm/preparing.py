"""Makes ready what a restart will submit: scripts, arguments and shapes, checked by bash and by Slurm."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.slurm.checking import check_script
from sentinel.adapters.slurm.client import Recorded, SlurmClient
from sentinel.adapters.slurm.records import JobRecords, NodeFailures, Prepared, Submissions
from sentinel.adapters.slurm.settings import SlurmSettings
from sentinel.jobscript.slurm_jobs import JobProperties, SlurmJob, Submission, mark_in, unmarked, with_own_head
from sentinel.jobscript.syntax import to_bytes
from sentinel.lint import new_scripts
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

__all__ = ["Preparation", "restart_of"]

log = logging.getLogger(__name__)

_NEVER_SEEN = "no job of this run was ever seen in Slurm; [launcher] script can name what to submit"


class Preparation:
    """Writes STATE_DIR/submissions/LABEL, whole or not at all; submits nothing."""

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        records: JobRecords,
        failures: NodeFailures,
        submissions: Submissions,
    ) -> None:
        self._client = client
        self._settings = settings
        self._records = records
        self._failures = failures
        self._submissions = submissions

    def prepare(self, label: str, submissions: Sequence[Submission], overrides: Overrides | None = None) -> None:
        """Makes the submissions ready under the label, with a rollback's changes where they belong in the script.

        SlurmRefused when bash or Slurm would not have them; ScriptRefused, ConfigError for what can't be changed.
        """
        changed = overrides if self._settings.changes_in_script else None
        room, shape = self._submissions.room(label), submissions
        if changed is not None:
            submissions = with_own_head(submissions)
        prepared = [self._made_ready(number, one, room, changed) for number, one in enumerate(submissions)]
        for one in prepared:
            for script in (one.script, one.later):
                if script is not None:
                    check_script(script, room / f"{one.number}.original.sh")
            self._client.test(one.arguments, one.script, one.script_arguments)
        self._submissions.publish(label, room, prepared, shape)

    def original(self, group: str) -> str:
        """The run's own script behind a job: what it was before any rollback changed it."""
        return bounded.read_text(self.original_file(group), errors="surrogateescape")

    def original_file(self, group: str) -> Path:
        """Where that script is kept."""
        recorded, _ = self._records.recorded(group)
        mark = mark_in(recorded.comment)
        before = self._submissions.original_file(mark.label, mark.number) if mark else None
        return before or self._records.script_file(group)

    def whole(self, last: Submission) -> tuple[Submission, ...]:
        """The job with all that was submitted with it: the array's other tasks, what its rollback was submitted for."""
        if not last.group:
            return (last,)
        mark = mark_in(self._records.recorded(last.group)[0].comment)
        shape = self._submissions.shape(mark.label) if mark else ()
        return shape or (replace(last, array=self._records.array(last.group)),)

    def commands(self, submissions: Sequence[Submission]) -> tuple[str, ...]:
        """What a person types to submit these: the run's own scripts, with nothing changed. One line each."""
        named = f"SENTINEL_STATE_DIR={shlex.quote(str(self._settings.state_dir))}"
        lines = []
        for number, one in enumerate(submissions):
            words = ["sbatch", "--parsable", *self._words(one)]
            dependency = one.dependency.format(*(f"$job{n}" for n in range(number)))
            line = f"{named} {shlex.join(words[:2])}" + (f' --dependency="{dependency}"' if dependency else "")
            line = f"{line} {shlex.join(words[2:])}"
            lines.append(f"job{number}=$({line})" if len(submissions) > 1 else line)
        return tuple(lines)

    def _words(self, submission: Submission) -> list[str]:
        """sbatch's options, the script and its arguments."""
        more = self._settings.sbatch_arguments
        if not submission.group:
            if self._settings.script is None:
                raise ConfigError(_NEVER_SEEN)
            where = self._settings.working_directory or Path.cwd()
            return [f"--chdir={where}", *more, str(self._settings.script)]
        recorded, _ = self._records.recorded(submission.group)
        own = unmarked(recorded.comment)
        comment = [f"--comment={own}"] if own else []
        script = str(self.original_file(submission.group))
        return [*_arguments(recorded, submission), *comment, *more, script, *recorded.script_arguments]

    def _write(self, number: int, group: str, room: Path, changed: Overrides | None) -> tuple[Path, Path | None]:
        """The script, and the one for later starts, where they are two."""
        script = room / f"{number}.sh"
        if changed is None:
            script.write_bytes(to_bytes(self._records.script(group)))
            return script, None
        original = self.original(group)
        new = new_scripts(original, changed)
        for remark in new.remarks:
            log.warning("the changed run: %s", remark)
        mine = new.first if number == 0 else new.later
        script.write_bytes(to_bytes(mine.text))
        (room / f"{number}.original.sh").write_bytes(to_bytes(original))
        (room / f"{number}.diff").write_bytes(to_bytes(mine.diff))
        if new.later.text == mine.text:
            return script, None
        later = room / f"{number}.later.sh"
        later.write_bytes(to_bytes(new.later.text))
        return script, later

    def _made_ready(self, number: int, submission: Submission, room: Path, changed: Overrides | None) -> Prepared:
        script = room / f"{number}.sh"
        more = list(self._settings.sbatch_arguments)
        if not submission.group:
            if self._settings.script is None:
                raise ConfigError(_NEVER_SEEN)
            script.write_bytes(bounded.read_document(self._settings.script))
            return Prepared(
                number=number,
                arguments=(f"--chdir={self._settings.working_directory or Path.cwd()}", *more),
                script=script,
                script_arguments=(),
                comment="",
                dependency="",
                properties=None,
            )
        recorded, _ = self._records.recorded(submission.group)
        properties = self._without_failed_nodes(recorded.properties)
        recorded = replace(recorded, properties=replace(properties, array_throttle=submission.throttle))
        script, later = self._write(number, submission.group, room, changed)
        if later is not None:  # a requeue would do once more what is done once
            recorded = replace(recorded, properties=replace(recorded.properties, requeue=False))
        return Prepared(
            number=number,
            arguments=(*_arguments(recorded, submission), *more),
            script=script,
            later=later,
            script_arguments=recorded.script_arguments,
            comment=recorded.comment,
            dependency=submission.dependency,
            properties=recorded.properties,
        )

    def _without_failed_nodes(self, properties: JobProperties) -> JobProperties:
        """Leaves out nodes that failed again and again; those that the job already leaves out stay so."""
        often = self._settings.exclude_after_failures
        failed = [node for node, jobs in self._failures.read().items() if len(jobs) >= often and node != "unknown"]
        left_out = [node for node in (properties.excluded_nodes, *failed) if node]
        return replace(properties, excluded_nodes=",".join(left_out)) if failed else properties

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
        _, seen = self._records.recorded(group)
        ran = [word.partition("_")[2] for s in started if (word := s.job_id or "").startswith(f"{group}_")]
        return Submission(group=group, array=ran[-1] if ran else seen)


def _arguments(recorded: Recorded, submission: Submission) -> list[str]:
    """For sbatch, without comment and dependency."""
    arguments = recorded.properties.arguments()
    arguments += [f"--output={recorded.output}"] if recorded.output else []
    arguments += [f"--error={recorded.error}"] if recorded.error else []
    return arguments + ([f"--array={submission.array}"] if submission.array else [])


def restart_of(group: str | None) -> str:
    """The label of a restart without a rollback, after the newest job that was recorded."""
    return f"restart-of-{'none' if group is None else group}"
