"""A run of Hugging Face's Trainer that is rescued: its configuration and program, its watch, what shows that it was."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample
from tests.support.log_lines import lines_of

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "hooks" / "rescued_llama.py"
CONFIGURATION = """\
[run]
name = "llama"
checkpoints = "checkpoints"
state_dir = "state"

[launcher]
command = {command}

[watch]
poll_interval_s = 0.3

[policy]
mode = "act"
margin_steps = 10
hold_steps = 60
confirm_within_s = 200

[[policy.ladder]]
name = "earlier + reseed + LR / 8"
hypothesis = "this model does not bear this learning rate"
target = "before_risky_window"
reseed = true
lr_factor = 0.125
"""


def watched(folder: Path, within_s: float = 400.0, kills: Sequence[float] = ()) -> Incident:
    """From the first step to the end of the watch, which is killed after each of so many seconds and started again."""
    state = folder / "state"
    command = tomllib.loads((folder / "llama.toml").read_text())["launcher"]["command"]
    jobs = LocalJobs(state)
    jobs.start(command, cwd=folder, extra_env={}, log_path=state / "job.log")
    line = [sys.executable, "-m", "sentinel", "watch", "--run", str(folder / "llama.toml")]
    for number, after_s in enumerate(kills):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(line, capture_output=True, timeout=after_s, check=False)  # which kills it
            assert number > len(kills) // 2, "the watch ended by itself"
    ran = subprocess.run(line, capture_output=True, text=True, timeout=within_s, check=False)
    jobs.stop(grace_s=20)
    told = ran.stdout + ran.stderr
    assert ran.returncode == 0, f"{told[-3000:]}\n{(state / 'job.log').read_text()[-2000:]}"
    (incident,) = fold(IncidentLog(state / "incidents.jsonl").read())
    return incident


def assert_rescued(run: Path, incident: Incident) -> None:
    events: list[dict[str, Any]] = [dict(e) for e in lines_of(run / "state" / "incidents.jsonl")]
    assert [e["event"] for e in events if e["event"] in ("proved", "not_verified", "not_proved")] == ["proved"]
    assert incident.status == "closed"
    records = list(Journals(run / "state").poll())
    first, second, *_ = (r for r in records if isinstance(r, RunStarted))  # an array's next task finds nothing left
    target = next(e for e in events if e["event"] == "proved")
    assert {check["what"]: check["answer"] for check in target["checks"] if check["changed"]}.keys() >= {
        "seed",
        "lr_schedule",
        "lr of the first step",
        "lr of the first steps",
    }
    assert {check["answer"] for check in target["checks"]} == {"confirmed"}
    assert second.rollback == incident.rollbacks[0].id
    assert second.lr_schedule is not None
    assert second.lr_schedule["peak"] == first.lr_schedule["peak"] / 8  # type: ignore[index]
    assert second.resumed_from is not None
    assert second.resumed_from in range(10, 60, 10)  # Trainer takes the newest folder, and the newer ones are away
    last = [r for r in records if isinstance(r, Sample) and r.attempt == second.attempt][-1]
    ends = [r.reason for r in records if isinstance(r, RunFinished) and r.attempt == second.attempt]
    assert ends == ["finished"]
    assert last.loss < 2.6
    moved = {path.name for path in (run / "checkpoints").rglob("checkpoint-*") if path.parent != run / "checkpoints"}
    assert f"checkpoint-{second.resumed_from + 10}" in moved
