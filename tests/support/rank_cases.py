"""Runs the cases of tests/hooks/ranks.py, and reads what each rank has printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Case = dict[int, dict[str, Any]]
"""{rank: what it has printed, and `exit` and `after_s` of its process}."""


def run(*names: str, timeout_s: float = 380) -> dict[str, Case]:
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "hooks" / "ranks.py"), *names],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path)),
        check=False,
    )
    sys.stderr.write(ran.stderr[-20000:])  # pytest shows it beside a failure
    cases: dict[str, Case] = {}
    for line in ran.stdout.splitlines():
        told = json.loads(line)
        cases.setdefault(told["case"], {}).setdefault(told["rank"], {}).update(told)
    assert set(cases) == set(names), ran.stderr[-4000:]
    return cases
