"""Slurm's commands, each with a deadline. What comes back is data, or says whether Slurm is away or has refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.adapters.slurm.jobs import UNLIMITED, JobProperties, SlurmJob
from sentinel.vocabulary.errors import NotOurJob, SentinelError, SlurmNotReady, SlurmRefused, SlurmUnavailable

# Of SlurmJob, in the order of _FORMAT
_FIELDS = ("id", "array", "tasks", "state", "name", "user", "comment", "dependency", "nodes", "directory", "left")
# Unit and record separators: a job's name and comment are anybody's text. This form is the same in every Slurm.
_FORMAT = "\x1f".join(("%A", "%F", "%K", "%T", "%j", "%u", "%k", "%E", "%N", "%Z", "%L")) + "\x1e"
_SQUEUE = ("squeue", "--all", "--noheader", "--states=all", f"--format={_FORMAT}")

_AWAY = re.compile(
    r"unable to contact|unable to connect|connection refused|connection timed out|timed out|not responding"
    r"|zero bytes were transmitted|transport endpoint|temporarily unable|try again|slurm_receive_msg|slurm_send"
    r"|communication|protocol authentication|munge|socket|standby mode|backup controller",
    re.IGNORECASE,
)
# What sbatch says while nodes are down; for minutes after the controller's own start it says so of all of them.
_NO_NODES = re.compile(
    r"node configuration is not available|nodes? (required|not available)|down, drained", re.IGNORECASE
)
_DENIED = re.compile(r"access/permission denied|not permitted", re.IGNORECASE)
_NO_SUCH_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_JOB_ID = re.compile("[0-9]{1,10}")
_LARGEST_JOB_ID = 0xFFFF_FFFD  # Slurm's NO_VAL and INFINITE are above
_IDS_PER_QUERY = 2_000  # Linux takes 128 KiB as one argument: 11,000 ids of ten digits
OUR_VARIABLES = re.compile(r"(?!SLURM_CONF$)(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SCANCEL|SENTINEL)_")

# squeue --json's names of those of JobProperties' fields that it calls otherwise
_NAMES = {"reservation": "resv_name", "nodes": "node_count", "working_directory": "current_working_directory"}
_NAMES |= {"memory_per_node_mb": "memory_per_node", "memory_per_cpu_mb": "memory_per_cpu"}
_NAMES["array_throttle"] = "array_max_tasks"


class Answer(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """Of what it said on stderr, which names the reason; the exit code where it said nothing."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


Runner = Callable[[Sequence[str], Mapping[str, str], float], Answer]
"""Runs a command with an environment and a deadline in seconds. SlurmUnavailable when it does not end in time."""


def run_command(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Answer:
    """A Runner. Slurm's commands wait for minutes when the controller is down; this does not."""
    try:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmUnavailable(command[0], f"can't be run: {error.strerror}") from error
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise SlurmUnavailable(command[0], f"no answer within {timeout_s:g} s") from error
    return Answer(process.returncode, stdout, stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What Slurm holds of a job that a later start will need."""

    properties: JobProperties
    comment: str = ""
    output: str = ""  # the pattern of its log's name, as `log-%j.txt`; "" for Slurm's own
    error: str = ""
    script_arguments: tuple[str, ...] = ()  # Slurm joins them by spaces: one that held a space has become two
    tasks: str = ""  # of an array: the task that stands for it where a job is started alone
    array: str | None = None  # all tasks that were there when it was recorded, with their throttle; "" for no array


_DUMP = """
py_spy=$(command -v py-spy) || exit 0
for process in $(pgrep -u "$(id -u)" python); do
    if tr '\\0' '\\n' < "/proc/$process/environ" 2>/dev/null | grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID"; then
        echo "== $(hostname), process $process"
        timeout 15 "$py_spy" dump --pid "$process" 2>&1
    fi
done
"""


class SlurmClient:
    """Asks and tells Slurm's controller. Every method may raise SlurmUnavailable; then nothing is known."""

    def __init__(self, *, user: str | None = None, timeout_s: float = 20.0, run: Runner = run_command) -> None:
        self.user = user or str(os.getuid())
        self._timeout_s = timeout_s
        self._run = run

    def jobs(self) -> tuple[SlurmJob, ...]:
        """All of the user's jobs that the controller still knows, ended ones too: one query, whatever runs."""
        return _jobs(self._ask(*_SQUEUE, f"--user={self.user}"))

    def jobs_by_id(self, groups: Collection[str]) -> tuple[SlurmJob, ...]:
        """These jobs and arrays, whoever's they are, ended ones too; the controller may not know some, or any.

        One query for up to 2,000 ids. An id that is none of Slurm's is not asked for: squeue refuses the whole query
        because of it. An error that answers a query for several ids says nothing about any of them.
        """
        asked = sorted(group for group in groups if _JOB_ID.fullmatch(group) and 0 < int(group) <= _LARGEST_JOB_ID)
        found: list[SlurmJob] = []
        for first in range(0, len(asked), _IDS_PER_QUERY):
            ids = asked[first : first + _IDS_PER_QUERY]
            answer = self._tell(*_SQUEUE, f"--jobs={','.join(ids)}")
            if answer.code and (len(ids) > 1 or not _NO_SUCH_JOB.search(answer.stderr)):
                raise SlurmUnavailable("squeue", answer.last_line)
            found += _jobs(answer.stdout)
        return tuple(found)

    def recorded(self, group: str) -> Recorded:
        """What the job or array was submitted as. SlurmRefused when the controller does not know it any more."""
        if (found := self.recorded_of((group,)).get(group)) is None:
            raise SlurmRefused(f"Slurm does not know job {group} any more")
        return found

    def recorded_of(self, groups: Collection[str]) -> dict[str, Recorded]:
        """What each of these jobs and arrays was submitted as, by one query; those that the controller knows."""
        try:
            records = json.loads(self._ask("squeue", "--all", "--json"))["jobs"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SlurmUnavailable("squeue --json", "its answer is no JSON with jobs in it") from error
        found: dict[str, Recorded] = {}
        for record in records:
            for group in {str(_number(record.get("job_id"))), str(_number(record.get("array_job_id")))}:
                if group in groups and group not in found:
                    found[group] = _recorded(record)
        return found

    def script(self, group: str) -> str:
        """The batch script as Slurm spooled it. SlurmRefused when it does not hold it (any more)."""
        answer = self._tell("scontrol", "write", "batch_script", group, "-")
        if answer.code or not answer.stdout.startswith("#!"):
            raise _refusal(
                "scontrol", answer, SlurmRefused(f"the script of job {group} can't be had: {answer.last_line}")
            )
        return answer.stdout

    def failed_nodes(self, nodes: str) -> tuple[str, ...]:
        """Which of the nodes (as n[1-4]) are down, failing or drained now."""
        shown = self._ask(
            "sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--states=down,fail,drain", "--format=%N"
        )
        return tuple(sorted(set(shown.split())))

    def stacks(self, job: str) -> str:
        """What py-spy shows of the job's Python processes, on each of its nodes; "" where it is not installed."""
        command = ("srun", f"--jobid={job}", "--overlap", "--ntasks-per-node=1", "/bin/bash", "-c", _DUMP)
        return self._tell(*command).stdout

    def cancel(self, group: str) -> None:
        """Asks for the end of a job, or of a whole array; one that is gone already is none to worry about."""
        answer = self._tell("scancel", group)
        if answer.code and not _NO_SUCH_JOB.search(answer.stderr):
            if _DENIED.search(answer.stderr) and not _AWAY.search(answer.stderr):
                raise NotOurJob(f"job {group} is another user's: {answer.last_line}")
            raise _refusal("scancel", answer, SlurmRefused(f"job {group} can't be cancelled: {answer.last_line}"))

    def test(self, arguments: Sequence[str], script: Path, script_arguments: Sequence[str]) -> None:
        """Has Slurm check a submission without making it. SlurmRefused with its words."""
        answer = self._tell("sbatch", "--test-only", *arguments, str(script), *script_arguments)
        if answer.code:
            raise _refusal("sbatch", answer, SlurmRefused(f"Slurm refuses what would be submitted: {answer.last_line}"))

    def submit(
        self, arguments: Sequence[str], script: Path, script_arguments: Sequence[str], extra: Mapping[str, str]
    ) -> str:
        """Submits, with `extra` in the job's environment; returns its id. On SlurmUnavailable it may be there."""
        answer = self._tell("sbatch", "--parsable", *arguments, str(script), *script_arguments, extra=extra)
        if answer.code:
            raise _refusal("sbatch", answer, SlurmRefused(f"Slurm refuses the job: {answer.last_line}"))
        submitted = answer.stdout.strip().partition(";")[0]  # ID;CLUSTER where there are several
        if not submitted.isdigit():
            raise SlurmUnavailable("sbatch", f"it answered {answer.stdout.strip()!r} instead of a job id")
        return submitted

    def _ask(self, *command: str) -> str:
        """A query's answer. Whatever goes wrong with a query, nothing is known."""
        answer = self._tell(*command)
        if answer.code:
            raise SlurmUnavailable(command[0], answer.last_line)
        return answer.stdout

    def _tell(self, *command: str, extra: Mapping[str, str] | None = None) -> Answer:
        environment = {k: v for k, v in os.environ.items() if not OUR_VARIABLES.match(k)}
        # Without this, squeue shortens the list of an array's waiting tasks to 64 characters.
        return self._run(command, {**environment, "SLURM_BITSTR_LEN": "0", **(extra or {})}, self._timeout_s)


def _refusal(command: str, answer: Answer, refused: SlurmRefused) -> SentinelError:
    """What an answer that is none means: that Slurm is away, has no nodes just now, or has refused."""
    if _AWAY.search(answer.stderr):
        return SlurmUnavailable(command, answer.last_line)
    if _NO_NODES.search(answer.stderr):
        return SlurmNotReady(f"Slurm can't place the job now: {answer.last_line}")
    return refused


def _jobs(shown: str) -> tuple[SlurmJob, ...]:
    return tuple(_job(record.split("\x1f")) for record in shown.split("\x1e\n") if record.strip())


def _job(parts: Sequence[str]) -> SlurmJob:
    if len(parts) == len(_FIELDS) - 1:  # an answer that an older release has shared
        parts = [*parts, ""]
    if len(parts) != len(_FIELDS):
        raise SlurmUnavailable("squeue", f"a line with {len(parts)} fields instead of {len(_FIELDS)}")
    shown = ("" if part in ("(null)", "N/A") else part for part in parts)
    found: dict[str, Any] = dict(zip(_FIELDS, shown, strict=True))
    is_array = found["tasks"] or found["array"] != found["id"]
    return SlurmJob(**{**found, "array": found["array"] if is_array else None})


def _recorded(record: Mapping[str, Any]) -> Recorded:
    """A record of squeue --json. Newer Slurms write numbers as {"set", "infinite", "number"}."""
    words = _text(record, "command").split(" ")
    name_ends = next((n for n in range(len(words), 0, -1) if Path(" ".join(words[:n])).is_file()), 1)
    found: dict[str, Any] = {}
    for field in fields(JobProperties):
        key = _NAMES.get(field.name, field.name)
        found[field.name] = _text(record, key) if field.default == "" else _number(record.get(key)) or None
    limit = record.get("time_limit")
    infinite = limit.get("infinite") if isinstance(limit, dict) else limit == 0xFFFFFFFF
    found["time_limit_min"] = UNLIMITED if infinite else _number(limit)
    found["requeue"] = bool(record.get("requeue", True))
    return Recorded(
        properties=JobProperties(**found),
        comment=_text(record, "comment"),
        output=_text(record, "standard_output"),
        error=_text(record, "standard_error"),
        script_arguments=tuple(words[name_ends:]),
    )


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return value if isinstance(value, int) and value < 0xFFFFFFFE else None  # Slurm's NO_VAL and INFINITE are above
