"""A real training whose gradients grow at once: the onset shows it, and the rung for it recovers the run at its full
learning rate, by the default ladder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


RUNS = ("3.0", "3.1", "3.2", "1.0")
"""About six of ten runs diverge, the others heal; which of them, an other CPU's rounding decides."""


@pytest.mark.full
@pytest.mark.timeout(600)
def test_where_adams_variance_lags_the_default_ladder_warms_the_learning_rate_up_again(tmp_path: Path) -> None:
    run, row, ran = next(made for made in (perform(run, tmp_path) for run in RUNS) if made[1]["incidents"])
    (incident,) = row["incidents"]
    assert incident["outcome"] == "recovered", ran.stderr
    assert incident["instability"].startswith("Adam's variance lags: gradients ")
    assert [(rung, proof) for rung, _, _, proof, _ in row["rungs"]] == [("LR warmup again", "confirmed")]
    assert (row["last_step"], row["last_lr"]) == (row["steps"], 1.0)
    assert f"stale {run} default: recovered; LR warmup again from 3" in ran.stdout


def perform(run: str, folder: Path) -> tuple[str, dict[str, Any], subprocess.CompletedProcess[str]]:
    asked = ["run", "--task", "stale", "--runs", run, "--ladder", "default", "--folder", str(folder)]
    program = [sys.executable, str(ROOT / "benchmarks" / "ladders.py"), *asked]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    return run, json.loads((folder / f"stale-{run}-default.json").read_text()), ran
