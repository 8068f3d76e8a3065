"""The count of seeds with which the demo diverges: each row is of the vector instructions that it names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_each_row_is_trained_with_its_vector_instructions_and_no_run_twice(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    command = [sys.executable, "benchmarks/demo_divergence.py", "--quick", "--json", "--runs", str(kept)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert [row["aten_cpu_capability"] for row in rows] == [None, "avx2", "default"]
    assert [row["used"] for row in rows][1:] == ["AVX2", "DEFAULT"]
    assert [(run["seed"], run["last_step"]) for row in rows for run in row["runs"]] == [(0, 30)] * 3
    before = kept.read_text()
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert json.loads(again.stdout)["rows"] == rows
    assert kept.read_text() == before


@pytest.mark.full
@pytest.mark.timeout(200)
def test_a_run_that_is_stopped_from_outside_is_no_result() -> None:
    """It was written down as one that did not diverge."""
    command = [sys.executable, "benchmarks/demo_divergence.py", "--train", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert any(line.startswith("attempt 1, from scratch") for line in worker.stdout)
        time.sleep(2)  # into its first steps: 140 of them come before a verdict
        worker.terminate()
        said, complained = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "seed 0: stopped before its verdict: sigterm" in complained
    assert "onset" not in said
