"""A real training whose gradients grow at once: the onset shows it, and the rung for it recovers the run at its full
learning rate, by the default ladder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_where_adams_variance_lags_the_default_ladder_warms_the_learning_rate_up_again(tmp_path: Path) -> None:
    asked = ["run", "--task", "stale", "--runs", "1.0", "--ladder", "default", "--folder", str(tmp_path)]
    program = [sys.executable, str(ROOT / "benchmarks" / "ladders.py"), *asked]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    row = json.loads((tmp_path / "stale-1.0-default.json").read_text())
    (incident,) = row["incidents"]
    assert incident["outcome"] == "recovered", ran.stderr
    assert incident["instability"].startswith("Adam's variance lags: gradients ")
    assert [(rung, proof) for rung, _, _, proof, _ in row["rungs"]] == [("LR warmup again", "confirmed")]
    assert (row["last_step"], row["last_lr"]) == (row["steps"], 1.0)
    assert "stale 1.0 default: recovered; LR warmup again from 3" in ran.stdout
