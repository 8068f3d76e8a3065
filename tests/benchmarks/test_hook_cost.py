"""What the benchmark of the hook's cost promises to the scripts that read it, and that its peer is the peer."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.hook_cost import State, peer

ROOT = Path(__file__).parents[2]


def test_the_peers_twelve_scalars_are_those_of_its_description() -> None:
    v = [torch.tensor([0.25, 4.0]), torch.tensor([[9.0]])]
    m = [torch.tensor([-3.0, 4.0]), torch.tensor([[0.0]])]
    p = [torch.tensor([1.0, -1.0]), torch.tensor([[2.0]])]
    assert peer(State(v=v, m=m, parameters=p)) == pytest.approx(
        [0.0625 + 16 + 81, 0.25 + 4 + 9, 25, 6, 13.25, 0.5 + 2 + 3, 7, 4, 9, 3, 4, 2]
    )


def test_the_document_has_the_keys_that_scripts_rely_on_and_nothing_else_is_printed() -> None:
    ran = subprocess.run(
        [sys.executable, "benchmarks/hook_cost.py", "--quick", "--json", "--repetitions", "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    (row,) = json.loads(ran.stdout)["rows"]
    assert row["device"] in ("cpu", "cuda")
    assert row["params"] == pytest.approx(10e6, rel=0.1)
    for key in ("floor_ms", "ours_ms", "peer_ms", "step_ms"):
        assert math.isfinite(row[key])
        assert row[key] > 0
