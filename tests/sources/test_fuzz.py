"""Coverage-guided fuzzing of every reader: no exception comes out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.sources.line_formats import FORMATS

pytest.importorskip("atheris", reason="atheris has no wheel for this Python")
PROGRAM = Path(__file__).with_name("fuzz.py")


def fuzz(chosen: str, runs: int, within_s: float) -> None:
    command = [sys.executable, str(PROGRAM), chosen, str(runs)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
        cwd=PROGRAM.parents[2],
        env=_environment(),
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(PROGRAM.parents[2]), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.full
def test_some_thousand_inputs_over_all_readers() -> None:
    fuzz("all", 6_000, within_s=240)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_a_million_inputs_over_all_readers(name: str) -> None:
    fuzz(name, 1_000_000 // len(FORMATS), within_s=3600)
