"""Runs a program of this folder, as under torchrun, and reads the JSON lines that it prints."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.hooks.compiled import EXTENSIONS
from tests.support.forked_programs import forked


def lines_of(program: str, *arguments: str, ranks: int, timeout_s: float = 500) -> list[dict[str, Any]]:
    path, file = os.pathsep.join(sys.path), str(Path(__file__).with_name(program))
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path, TORCH_EXTENSIONS_DIR=str(EXTENSIONS))
    ran = forked(file, *arguments, ranks=ranks, env=env, timeout_s=timeout_s)
    assert ran.returncode == 0, ran.stderr[-20_000:]  # the rank that failed first is not the last to say so
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"case"')]
