"""What a run's configuration says about its jobs in Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["SlurmSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """What the run's configuration says about its jobs."""

    run: str
    """What its jobs are marked with: two runs that share a user must not share it."""

    state_dir: Path
    job_name: str | None = None
    script: Path | None = None
    """What is submitted when no job of the run was ever seen."""

    changes_in_script: bool = False
    """Whether a rollback's changes are made in the job script, for a trainer that does not read overrides.json."""

    working_directory: Path | None = None
    """Where that script is submitted from; a job that was seen starts where it did before."""

    sbatch_arguments: tuple[str, ...] = ()
    """Added to every submission, last: they win."""

    own_job: str | None = None
    """The job that sentinel itself runs in, which is not the run's."""

    exclude_after_failures: int = 2
    """A node that failed under so many of the run's jobs is left out of its submissions."""

    query_interval_s: float = 15.0
    stop_grace_s: float = 60.0
