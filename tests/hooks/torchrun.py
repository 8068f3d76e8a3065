"""Runs a program of this folder under torchrun, and reads the JSON lines that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def lines_of(program: str, *, ranks: int) -> list[dict[str, Any]]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    ran = subprocess.run(
        [*torchrun, str(Path(__file__).with_name(program))],
        capture_output=True,
        text=True,
        timeout=500,
        env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path)),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"case"')]
