"""Runs a program of this folder under torchrun, and reads the JSON lines that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.hooks.compiled import EXTENSIONS


def lines_of(program: str, *arguments: str, ranks: int, timeout_s: float = 500) -> list[dict[str, Any]]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    ran = subprocess.run(
        [*torchrun, str(Path(__file__).with_name(program)), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=dict(
            os.environ,
            OMP_NUM_THREADS="1",
            PYTHONPATH=os.pathsep.join(sys.path),
            TORCH_EXTENSIONS_DIR=str(EXTENSIONS),
        ),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-20_000:]  # the rank that failed first is not the last to say so
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"case"')]
