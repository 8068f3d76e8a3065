"""STATE_DIR/jobs and nodes.json: what Slurm forgets minutes after a job's end."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.slurm.client import Recorded, SlurmClient
from sentinel.adapters.slurm.jobs import SlurmJob, Submission, array_of
from sentinel.adapters.slurm.queue import Queue
from sentinel.durable import write_atomically
from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import LineError, SlurmRefused
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json

log = logging.getLogger(__name__)

_ASKED_AGAIN_S = 600.0  # for a script that Slurm does not give: another user's stays so
_FORM = Form(error=LineError, name="the record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Which jobs were cancelled last, and the shape they are submitted again in: after an undo the queue is empty."""

    groups: tuple[str, ...] = ()
    shape: tuple[Submission, ...] = ()


class JobRecords:
    """STATE_DIR/jobs: GROUP.sh and GROUP.json of every job and array of the run that was seen alive; stopped.json."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, group: str) -> bool:
        """Whether the job is recorded whole; its JSON is written last."""
        return self._path(group, ".json").exists()

    def groups(self) -> list[str]:
        """Jobs and arrays that are recorded, the oldest first."""
        return sorted((p.stem for p in self._folder.glob("*.json") if p.stem.isdigit()), key=int)

    def newest(self) -> str | None:
        return next(reversed(self.groups()), None)

    def keep(self, group: str, script: str, recorded: Recorded, members: Sequence[SlurmJob]) -> None:
        """Writes a job down. `members` are what was seen of it, several for an array; the last one's task stands for it
        where a job is started alone."""
        array = array_of(members, recorded.properties.array_throttle)
        recorded = replace(recorded, tasks=members[-1].tasks, array=array)
        self._folder.mkdir(exist_ok=True)
        write_atomically(self.script_file(group), script.encode("utf-8", "surrogateescape"))
        write_atomically(self._path(group, ".json"), dump_json(asdict(recorded), indent=2))

    def script_file(self, group: str) -> Path:
        return self._path(group, ".sh")

    def script(self, group: str) -> str:
        """The batch script, as Slurm had spooled it."""
        return bounded.read_text(self.script_file(group), errors="surrogateescape")

    def recorded(self, group: str) -> Recorded:
        """What the job was submitted as, and its array's tasks. SlurmRefused for a record that can't be read."""
        path = self._path(group, ".json")
        recorded = bounded.read_record(path, lambda data: read(Recorded, data, form=_FORM), SlurmRefused)
        return recorded if recorded.array is not None else replace(recorded, array=recorded.tasks)

    def log_of(self, job: SlurmJob) -> str | None:
        """Where the job's output goes, by the pattern that it was submitted with; None for one that is not recorded."""
        if not self.has(job.group):
            return None
        recorded = self.recorded(job.group)
        known = {"A": job.group, "a": job.tasks or "4294967294", "j": job.id, "x": job.name, "u": job.user, "%": "%"}
        pattern = recorded.output or ("slurm-%A_%a.out" if job.array else "slurm-%j.out")
        name = re.sub(r"%(\d*)([AajxuN%])", lambda m: known.get(m[2], m[0]).rjust(int(m[1] or 0), "0"), pattern)
        return str(Path(recorded.properties.working_directory) / name)

    def stopped(self) -> Stopped:
        path = self._folder / "stopped.json"
        return bounded.record_or(Stopped(), path, lambda data: read(Stopped, data, form=_FORM), SlurmRefused)

    def note_stopped(self, stopped: Stopped) -> None:
        write_atomically(self._folder / "stopped.json", dump_json(asdict(stopped), indent=2))

    def node_failures(self) -> dict[str, list[str]]:
        """STATE_DIR/nodes.json: node -> jobs that it took with it. SlurmRefused for a file that can't be read."""
        path = self._folder.parent / "nodes.json"
        return bounded.record_or({}, path, lambda data: {n: list(jobs) for n, jobs in data.items()}, SlurmRefused)

    def note_node_failures(self, job: str, nodes: Sequence[str]) -> None:
        failures = self.node_failures()
        for node in nodes:
            failures.setdefault(node, []).append(job)
        write_atomically(self._folder.parent / "nodes.json", dump_json(failures))

    def _path(self, group: str, suffix: str) -> Path:
        return self._folder / f"{checked_name(group, 'a job id')}{suffix}"


class Recording:
    """Records the run's jobs while Slurm still knows them, once each, and the nodes that failed under them."""

    def __init__(
        self, client: SlurmClient, queue: Queue, records: JobRecords, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._queue = queue
        self._records = records
        self._clock = clock
        self._refused_s: dict[str, float] = {}  # job or array -> when it could not be recorded

    def keep(self, jobs: Iterable[SlurmJob], *, insist: bool = False) -> None:
        """Records script and properties of the jobs that are not recorded yet, those that run last. What can't be
        recorded (another user's script) is logged once: a run can be watched without it. With `insist` it is
        SlurmRefused."""
        groups: dict[str, list[SlurmJob]] = {}
        for job in sorted(jobs, key=lambda job: not job.waits):
            groups.setdefault(job.group, []).append(job)
        for group, members in groups.items():
            refused_s = self._refused_s.get(group)
            waits = refused_s is not None and not insist and self._clock() < refused_s + _ASKED_AGAIN_S
            if waits or self._records.has(group):
                continue
            try:
                script, recorded = self._client.script(group), self._queue.recorded(group)
                self._records.keep(group, script, recorded, members)
            except SlurmRefused as error:
                if insist:
                    raise
                if refused_s is None:
                    log.warning("%s; it could not be started again", error)
                self._refused_s[group] = self._clock()

    def note_failed_nodes(self, jobs: Iterable[SlurmJob]) -> None:
        """A node that took a job with it is down now, and may be up again when the next job is placed."""
        for job in jobs:
            if job.state != "NODE_FAIL" or not job.nodes:
                continue
            if not any(job.id in known for known in self._records.node_failures().values()):
                several = re.search(r"[\[,]", job.nodes)
                failed = self._client.failed_nodes(job.nodes) if several else (job.nodes,)
                self._records.note_node_failures(job.id, failed or ("unknown",))
