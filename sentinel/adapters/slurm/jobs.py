"""What Slurm shows of jobs, and how what was cancelled is submitted again in the same shape."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, get_type_hints
from urllib.parse import quote, unquote

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_ENDED = frozenset(
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"]
) | {"PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"}
_MARK = re.compile(r"\s*\bsentinel:([^\s:]+):([^\s:]+):(\d+)")
_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", re.ASCII)
_NEEDED = re.compile(r"(?P<type>[a-z]+):(?P<id>\d+)(?P<task>_(?:\d+|\*))?(?P<delay>\+\d+)?(?:\([a-z]*\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One record of squeue: a job, a task of an array, or the tasks of an array that still wait."""

    id: str  # The record's own job id, digits
    array: str | None = None  # Job id of the array that it belongs to; None for a job that is none
    tasks: str = ""  # The index; of those that wait their list with its throttle, as `2-4%1`; "" for no array
    state: str = "RUNNING"  # As squeue -o %T. What is neither waiting nor ended may write: COMPLETING does
    name: str = ""
    user: str = ""
    comment: str = ""
    nodes: str = ""  # Where it runs or ran, as n[1-4]; "" for nowhere yet
    dependency: str = ""  # What is not yet fulfilled, as `afterany:7(unfulfilled)`; "" for nothing
    directory: str = ""  # Its work directory; "" where Slurm does not tell it
    left: str = "UNLIMITED"  # Of its time limit, as squeue -o %L: `1-02:03:04`, `UNLIMITED`, or a word for unknown

    @property
    def group(self) -> str:
        """The id that was given at submission: the array's, or its own."""
        return self.array or self.id

    @property
    def shown(self) -> str:
        """As a person names it and scancel takes it: `4711`, `7_2`, `7_[2-4%1]`."""
        if self.array is None:
            return self.id
        return f"{self.array}_{self.tasks}" if self.tasks.isdigit() else f"{self.array}_[{self.tasks}]"

    @property
    def remaining_s(self) -> float | None:
        """Seconds that are left of its time limit; None without a limit, nan where Slurm does not tell."""
        if self.left == "UNLIMITED":
            return None
        found = _LEFT.fullmatch(self.left)
        if found is None:
            return math.nan
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

    @property
    def waits(self) -> bool:
        """Whether it has not begun: it writes nothing, and will begin by itself."""
        return self.state in _WAITING

    @property
    def broken_off(self) -> bool:
        """Whether it is over, and neither by itself in good order nor because somebody cancelled it."""
        return self.ended and self.state not in ("COMPLETED", "CANCELLED", "REVOKED")

    @property
    def ended(self) -> bool:
        """Whether it is over. COMPLETING is not: its processes may still be there. An unknown state is not, either."""
        return self.state in _ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What sentinel writes into the comment of each job that it submits, to find it again when a reply was lost."""

    run: str
    label: str  # The rollback that it was submitted for, or the name of a restart
    number: int  # Which of its submissions, from 0


def marked(comment: str, mark: Mark) -> str:
    """The comment with the mark: the user's own words stay, an older mark goes."""
    text = f"sentinel:{quote(mark.run, safe='')}:{quote(mark.label, safe='')}:{mark.number}"
    return f"{unmarked(comment)} {text}".strip()


def unmarked(comment: str) -> str:
    """The user's own words in a job's comment."""
    return _MARK.sub("", comment).strip()


def mark_in(comment: str) -> Mark | None:
    """The mark in a job's comment, or None."""
    found = _MARK.search(comment)
    return Mark(run=unquote(found[1]), label=unquote(found[2]), number=int(found[3])) if found else None


def needs(dependency: str) -> list[str]:
    """Ids of the jobs and arrays that a dependency names, in its order."""
    return [match["id"] for match in _NEEDED.finditer(dependency)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One sbatch: a job or an array, in the shape that the cancelled one had."""

    group: str  # The job or array that its script and its properties come from
    array: str = ""  # Task indices and throttle, as sbatch --array takes them; "" for no array
    dependency: str = ""  # With {0}, {1} … where the ids of the earlier submissions go; "" for none

    @property
    def throttle(self) -> int | None:
        """How many of the array's tasks may run at once; None for no array, or no limit."""
        number = self.array.partition("%")[2]
        return int(number) if number else None


def resubmission(jobs: Sequence[SlurmJob], throttles: Mapping[str, int | None]) -> tuple[Submission, ...]:
    """The submissions that stand in for these jobs once they are cancelled, in their order.

    `throttles`: of each array's id how many of its tasks may run at once, as far as known. squeue tells it only while
    two or more of them wait: without it, the last that waits would begin beside the one that runs.

    What runs begins again, in the same array as what waits behind it: `7_1` running and `7_[2-4%1]` waiting are one
    array `1,2-4%1`. A dependency on one of these jobs becomes one on its stand-in; one on another job stays.
    """
    groups: dict[str, list[SlurmJob]] = {}
    for job in sorted(jobs, key=lambda j: (all(o.waits for o in jobs if o.group == j.group), int(j.group), int(j.id))):
        groups.setdefault(job.group, []).append(job)
    order = _in_order(groups)
    places = {group: place for place, group in enumerate(order)}
    return tuple(
        Submission(
            group=group,
            array=array_of(groups[group], throttles.get(group)),
            dependency=_moved(groups[group][-1].dependency, places, places[group]),
        )
        for group in order
    )


def with_own_head(submissions: Sequence[Submission]) -> tuple[Submission, ...]:
    """The same, with the first task of a leading array as a job of its own: it gets another script than the rest.

    What is done once must not be done again by the tasks behind it. They wait for it; what waited for the array waits
    for both.
    """
    first, *others = submissions
    indices = _expanded(first.array)
    if len(indices) < 2:
        return tuple(submissions)
    _, percent, throttle = first.array.partition("%")
    rest = ",".join(map(str, indices[1:])) + percent + throttle
    places = {0: "{0}:{1}"} | {n: f"{{{n + 1}}}" for n in range(1, len(submissions))}
    moved = [replace(o, dependency=re.sub(r"\{(\d+)\}", lambda m: places[int(m[1])], o.dependency)) for o in others]
    head = replace(first, array=str(indices[0]))
    return (head, Submission(group=first.group, array=rest, dependency="afterany:{0}"), *moved)


def _expanded(array: str) -> list[int]:
    """`1,3-5,8-12:2%1` as a list of indices, in its order; empty for no array."""
    found: list[int] = []
    for part in array.partition("%")[0].split(",") if array else ():
        span, _, step = part.partition(":")
        begin, _, end = span.partition("-")
        found += range(int(begin), int(end or begin) + 1, int(step or 1))
    return found


def _in_order(groups: dict[str, list[SlurmJob]]) -> list[str]:
    """Each after those that it depends on."""
    order: list[str] = []
    left = list(groups)
    while left:
        ready = [g for g in left if not {n for j in groups[g] for n in needs(j.dependency)} & (set(left) - {g})]
        order += (ready or left)[:1]
        left.remove(order[-1])
    return order


def array_of(jobs: Sequence[SlurmJob], known_throttle: int | None) -> str:
    """One list of the array's indices with the throttle that was set; "" for a job that is no array."""
    if jobs[0].array is None:
        return ""
    lists = [job.tasks.partition("%") for job in sorted(jobs, key=lambda j: (j.waits, int(j.id)))]
    throttle = next((number for _, _, number in lists if number), str(known_throttle or ""))
    return ",".join(indices for indices, _, _ in lists) + (f"%{throttle}" if throttle else "")


def _moved(dependency: str, places: Mapping[str, int], own: int) -> str:
    def moved(match: re.Match[str]) -> str:
        place = places.get(match["id"])
        needed = match["id"] if place is None or place >= own else f"{{{place}}}"
        task = match["task"] if match["task"] not in (None, "_*") else ""
        return f"{match['type']}:{needed}{task}{match['delay'] or ''}"

    text = _NEEDED.sub(moved, dependency)
    return re.sub(r"\([a-z]*\)", "", text)


UNLIMITED = -1  # A time limit that is none


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProperties:
    """The properties that a restart has to keep. None or "" is what was not asked for."""

    name: Annotated[str, "--job-name"] = ""
    partition: Annotated[str, "--partition"] = ""
    account: Annotated[str, "--account"] = ""
    qos: Annotated[str, "--qos"] = ""
    reservation: Annotated[str, "--reservation"] = ""
    features: Annotated[str, "--constraint"] = ""  # As --constraint takes them
    time_limit_min: Annotated[int | None, "--time"] = None  # Minutes; UNLIMITED for no limit
    nodes: Annotated[int | None, "--nodes"] = None
    tasks: Annotated[int | None, "--ntasks"] = None
    cpus_per_task: Annotated[int | None, "--cpus-per-task"] = None
    memory_per_node_mb: Annotated[int | None, "--mem"] = None
    memory_per_cpu_mb: Annotated[int | None, "--mem-per-cpu"] = None
    tres_per_node: Annotated[str, "--gres"] = ""  # As squeue shows it, e.g. gres:gpu:8 or gres/gpu:8.
    tres_per_task: str = ""
    tres_per_job: str = ""
    required_nodes: Annotated[str, "--nodelist"] = ""
    excluded_nodes: Annotated[str, "--exclude"] = ""
    licenses: Annotated[str, "--licenses"] = ""
    requeue: Annotated[bool, "--requeue"] = True
    working_directory: Annotated[str, "--chdir"] = ""
    array_throttle: Annotated[int | None, "--array"] = None  # How many of its tasks run at once

    def arguments(self) -> list[str]:
        """For sbatch. Given on the command line, they hold whatever the script's own #SBATCH lines say."""
        given = {option: getattr(self, name) for option, name in _OPTIONS.items()} | {
            "--time": "UNLIMITED" if self.time_limit_min == UNLIMITED else self.time_limit_min,
            "--gres": _gres(self.tres_per_node),
            "--array": None,
            "--requeue": None,
        }
        for option in ("--mem", "--mem-per-cpu"):
            given[option] = None if given[option] is None else f"{given[option]}M"
        requeue = "--requeue" if self.requeue else "--no-requeue"
        return [f"{option}={value}" for option, value in given.items() if value not in (None, "")] + [requeue]

    def differences(self, other: JobProperties, *, asked: Sequence[str] = ()) -> tuple[str, ...]:
        """What another job has otherwise, each as a phrase: `partition is 'long', not 'debug'`.

        What the options `asked` for by hand (as `--partition=long`) change is no difference.
        """
        changed = {_OPTIONS.get(option.partition("=")[0].replace("--no-", "--")) for option in asked}
        if self.time_limit_min is None:  # one that was left to the partition shows only once the job begins
            changed.add("time_limit_min")
        mine, others = asdict(self), asdict(other)
        different = [name for name in mine if name not in changed and mine[name] != others[name]]
        return tuple(f"{name} is {others[name]!r}, not {mine[name]!r}" for name in different)


# sbatch's option of each property, in its long form.
_OPTIONS = {
    hint.__metadata__[0]: name
    for name, hint in get_type_hints(JobProperties, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


def _gres(tres: str) -> str:
    """`gres:gpu:8` and `gres/gpu:8` as sbatch --gres takes it; other TRES have no option of their own."""
    parts = [part[len("gres:") :] for part in tres.split(",") if part.startswith(("gres:", "gres/"))]
    return ",".join(parts)
