"""benchmarks/tune_slw.py: what its document promises, and that the search it shows comes to the grid's answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "tune_slw.py"


@pytest.mark.soak
def test_the_search_says_what_the_grid_says() -> None:
    """Only the quick grid, of which a search needs a larger share than of a whole one."""
    command = [sys.executable, str(PROGRAM), "--quick", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout)
    assert told["grid"]["steps"] == told["grid"]["cells"] * told["horizon_steps"]
    (search,) = told["searches"]
    assert search["same"], search
    assert search["curves_equal_the_grids"]
    assert search["share_of_grid_steps"] < 0.5
