"""What a Slurm job was asked to be: as sbatch's arguments, and compared with what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

UNLIMITED = -1  # A time limit that is none


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProperties:
    """The properties that a restart has to keep. None or "" is what was not asked for."""

    name: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    features: str = ""  # As --constraint takes them
    time_limit_min: int | None = None  # Minutes; UNLIMITED for no limit
    nodes: int | None = None
    tasks: int | None = None
    cpus_per_task: int | None = None
    memory_per_node_mb: int | None = None
    memory_per_cpu_mb: int | None = None
    tres_per_node: str = ""  # As squeue shows it, e.g. gres:gpu:8 or gres/gpu:8.
    tres_per_task: str = ""
    tres_per_job: str = ""
    required_nodes: str = ""
    excluded_nodes: str = ""
    licenses: str = ""
    requeue: bool = True
    working_directory: str = ""
    array_throttle: int | None = None
    """How many tasks of its array may run at once, a part of --array. None for no array, or no limit."""

    def arguments(self) -> list[str]:
        """For sbatch. Given on the command line, they hold whatever the script's own #SBATCH lines say."""
        given = {
            **{option: getattr(self, name) for option, name in _OPTIONS.items() if name != "requeue"},
            "--time": "UNLIMITED" if self.time_limit_min == UNLIMITED else self.time_limit_min,
            "--mem": _megabytes(self.memory_per_node_mb),
            "--mem-per-cpu": _megabytes(self.memory_per_cpu_mb),
            "--gres": _gres(self.tres_per_node),
        }
        requeue = "--requeue" if self.requeue else "--no-requeue"
        return [f"{option}={value}" for option, value in given.items() if value not in (None, "")] + [requeue]

    def _asks_nothing(self, name: str) -> bool:
        """A time limit that was left to the partition shows only once the job begins."""
        return name == "time_limit_min" and self.time_limit_min is None

    def differences(self, other: JobProperties, *, asked: Sequence[str] = ()) -> tuple[str, ...]:
        """What another job has otherwise, each as a phrase: `partition is 'long', not 'debug'`.

        What the options `asked` for by hand (as `--partition=long`) change is no difference.
        """
        changed = {(_OPTIONS | {"--array": "array_throttle"}).get(option.partition("=")[0]) for option in asked}
        return tuple(
            f"{f.name} is {getattr(other, f.name)!r}, not {getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name not in changed
            and not self._asks_nothing(f.name)
            and getattr(self, f.name) != getattr(other, f.name)
        )


_OPTIONS = {
    "--job-name": "name",
    "--partition": "partition",
    "--account": "account",
    "--qos": "qos",
    "--reservation": "reservation",
    "--constraint": "features",
    "--time": "time_limit_min",
    "--nodes": "nodes",
    "--ntasks": "tasks",
    "--cpus-per-task": "cpus_per_task",
    "--mem": "memory_per_node_mb",
    "--mem-per-cpu": "memory_per_cpu_mb",
    "--gres": "tres_per_node",
    "--nodelist": "required_nodes",
    "--exclude": "excluded_nodes",
    "--licenses": "licenses",
    "--requeue": "requeue",
    "--no-requeue": "requeue",
    "--chdir": "working_directory",
}
"""sbatch's option of each property, in its long form."""


def _megabytes(amount: int | None) -> str:
    return "" if amount is None else f"{amount}M"


def _gres(tres: str) -> str:
    """`gres:gpu:8` and `gres/gpu:8` as sbatch --gres takes it; other TRES have no option of their own."""
    parts = [part[len("gres:") :] for part in tres.split(",") if part.startswith(("gres:", "gres/"))]
    return ",".join(parts)
