"""Each campaign in full; its table is what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.campaigns.table import NOT_HERE

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks" / "campaigns").glob("*.py") if path.stem[0] != "_")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "table"])
def test_nothing_is_lost_nor_changed(name: str) -> None:
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", f"benchmarks.campaigns.{name}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=7000, check=False)
    print(done.stdout)
    if done.returncode == NOT_HERE:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
