"""The hook's readings, in real DeepSpeed on real gloo ranks, against a float64 reference over the gathered state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MATRIX = Path(__file__).with_name("matrix.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_readings_equal_the_reference_on_every_sharding(ranks: int) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    ran = subprocess.run(
        [*torchrun, str(MATRIX)],
        capture_output=True,
        text=True,
        timeout=500,
        env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path)),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    cases = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"case"')]
    assert len(cases) == 10
    for case in cases:
        for name, (ours, reference) in case["readings"].items():
            tolerance = 1e-5 if name == "grad_norm" else 1e-6
            assert ours == pytest.approx(reference, rel=tolerance), f"{case['case']}: {name}"
