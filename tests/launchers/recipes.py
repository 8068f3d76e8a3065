"""A run whose jobs are spoken to by a recipe of examples/launchers, and the watch beside it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sentinel.adapters.incident_log import IncidentLog
from sentinel.plan.incident.incident import Incident
from tests.support.slurm_runs import incidents

ROOT = Path(__file__).parents[2]
CONFIG = "small.toml"
RECIPES = ROOT / "examples" / "launchers"

KILLED_AFTER = """
import os, signal, sys
import sentinel.adapters.incident_log as log
append, until = log.IncidentLog.append, sys.argv[1].split()
sys.argv[0:2] = ["sentinel"]
def looking(self, event):
    append(self, event)
    if [event["event"], (event.get("action") or {}).get("kind")] == until:
        os.kill(os.getpid(), signal.SIGKILL)
log.IncidentLog.append = looking
from sentinel.cli import main
main()
"""


_TOML = """\
[run]
name = "small"
checkpoints = "checkpoints"
state_dir = "state"

{launcher}

[watch]
poll_interval_s = 0.4

[judge]
quiet_s = 0.5

[policy]
mode = "act"
restart = "job"
hold_steps = 200

[[policy.ladder]]
name = "reseed"
hypothesis = "the data did it"
reseed = true
"""


def training(folder: Path, *steps: str) -> list[str]:
    """A real training that has nan in its data after 45 steps, until it is given another seed."""
    return [sys.executable, "-m", "tests.e2e.small_training", str(folder), *steps]


def diverged(folder: Path) -> None:
    """Trains such a run to its end, unwatched."""
    for name in ("checkpoints", "state"):
        (folder / name).mkdir(parents=True)
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(training(folder), env=os.environ | paths, cwd=folder, check=True, timeout=280)


def by_recipe(folder: Path, recipe: str, command: Sequence[str]) -> Path:
    """Writes small.toml into `folder`, with the recipe's tables as they are but for the job's name, and a copy of the
    recipe's files, whose train.sh runs the command."""
    copy = folder / "launcher"
    shutil.copytree(RECIPES / recipe, copy)
    script, paths = (copy / "train.sh").read_text(), f"export OMP_NUM_THREADS=1 PYTHONPATH={ROOT}"
    for placeholder, ours in (("cd /where/the/trainer/is", paths), ("python train.py", shlex.join(command))):
        assert placeholder in script
        script = script.replace(placeholder, ours)
    (copy / "train.sh").write_text(script)
    told = (copy / "launcher.toml").read_text()
    told = re.sub(r'^job_name = "tr8"', 'job_name = "small"', told, flags=re.MULTILINE)
    told = told.replace("[launcher]\n", '[launcher]\nworking_directory = "launcher"\nquery_interval_s = 0.4\n')
    (folder / CONFIG).write_text(_TOML.format(launcher=told))
    return copy


def watch(folder: Path, killed_after: str | None = None) -> list[str]:
    """`killed_after`: an event and its action, as `done stop_job`, after which the daemon kills itself."""
    program = ["-m", "sentinel"] if killed_after is None else ["-c", KILLED_AFTER, killed_after]
    return [sys.executable, *program, "watch", "--run", str(folder / CONFIG)]


def newest(folder: Path) -> Incident | None:
    there = incidents(folder) if (folder / "state" / "incidents.jsonl").exists() else ()
    return there[-1] if there else None


def kinds(folder: Path) -> list[str]:
    """Of the incident log's events."""
    return [event.kind for event in IncidentLog(folder / "state" / "incidents.jsonl").read()]


def checkpoints(folder: Path) -> list[str]:
    """What a restart would find: every path below the save folder but sentinel's own record, and `latest`."""
    save = folder / "checkpoints"
    found = [str(path.relative_to(save)) for path in save.rglob("*") if "global_step" in str(path.relative_to(save))]
    return [(save / "latest").read_text(), *sorted(found)]
