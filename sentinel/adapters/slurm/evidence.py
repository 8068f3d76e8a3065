"""How the run's jobs were submitted, to tell them from another run's of the same name."""

from __future__ import annotations

import os
from functools import cache

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.jobs import SlurmJob
from sentinel.adapters.slurm.preparing import Preparation
from sentinel.adapters.slurm.queue import Queue
from sentinel.adapters.slurm.records import JobRecords
from sentinel.adapters.slurm.submissions import SlurmSettings
from sentinel.adapters.slurm.whose_jobs import Evidence, Start
from sentinel.vocabulary.errors import SlurmRefused

_COMPARED = 4  # so many of the run's last jobs: a script may have been changed between two of them


def evidence_of(
    client: SlurmClient, settings: SlurmSettings, queue: Queue, records: JobRecords, preparation: Preparation
) -> Evidence:
    """Slurm is asked for a script once per job, and only where a name or a dependency alone speaks for the job.
    SlurmUnavailable from its functions when Slurm does not answer."""
    scripts: dict[str, str | None] = {}

    def runs(job: SlurmJob) -> str | None:
        if job.group not in scripts:
            try:
                if records.has(job.group):
                    found = _text(records.script(job.group), records.recorded(job.group).script_arguments)
                else:
                    found = _text(client.script(job.group), queue.recorded(job.group).script_arguments)
            except (SlurmRefused, OSError):  # another account's, or gone
                found = None
            scripts[job.group] = found
        return scripts[job.group]

    def recorded() -> list[Start]:
        starts = []
        for group in records.groups()[-_COMPARED:]:
            one = records.recorded(group)
            for script in {records.script(group), preparation.own_script(group)}:
                text = _text(script, one.script_arguments)
                starts.append(Start(f"job {group}", one.properties.working_directory, text))
        return starts

    return Evidence(configured=_configured(settings), recorded=recorded, runs=runs, same_place=_same_place)


def _configured(settings: SlurmSettings) -> Start | None:
    """Nothing is known of the arguments that a person gives the script."""
    if settings.working_directory is None:
        return None
    return Start("[launcher] working_directory", str(settings.working_directory), None)


def _text(script: str, arguments: tuple[str, ...]) -> str:
    return "\0".join((script, *arguments))


def _same_place(one: str, other: str) -> bool:
    return one == other or _resolved(one) == _resolved(other)


@cache
def _resolved(folder: str) -> str:
    return os.path.realpath(folder)
