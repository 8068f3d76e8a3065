"""Runs on the one-node Slurm: their job scripts and incidents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sentinel.adapters.incident_log import IncidentLog
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident


def for_slurm(folder: Path, **launcher: object) -> None:
    """Gives the demo's configuration a launcher of Slurm's."""
    settings = {"kind": "slurm", "job_name": "demo", "query_interval_s": 0.4, "slurm_timeout_s": 3.0} | launcher
    text = (folder / "demo.toml").read_text()
    begin, end = text.index("[launcher]"), text.index("[watch]")
    table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    (folder / "demo.toml").write_text(f"{text[:begin]}[launcher]\n{table}\n\n{text[end:]}")


def job_script(folder: Path, command: Sequence[str]) -> Path:
    path = folder / "train.sh"
    quoted = " ".join(f"'{word}'" for word in command)
    path.write_text(f"#!/bin/bash\n#SBATCH --time=1:00:00\nexport OMP_NUM_THREADS=1\nexec {quoted}\n")
    return path


def incidents(folder: Path) -> tuple[Incident, ...]:
    return fold(IncidentLog(folder / "state" / "incidents.jsonl").read())


def handed_in(folder: Path) -> bool:
    there = incidents(folder) if (folder / "state" / "incidents.jsonl").exists() else ()
    return bool(there) and there[-1].status == "applied"
