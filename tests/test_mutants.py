"""`python -m tools.mutants`: a breakage is noticed by the test that is there for it, and survives without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = """
def stale(age_s: float) -> bool:
    return age_s >= 120
"""
TESTS = """
from sentinel.adapters.lock import stale

def test_far_from_the_limit():
    assert stale(500) and not stale(1)

def test_that_fails_on_the_unchanged_code():
    assert stale(1)
"""
SHARP = """
def test_at_the_limit():
    assert stale(120) and not stale(119.9)
"""
HANGS = """
import subprocess, time

def test_hangs():
    print(subprocess.Popen(["sleep", "600"]).pid, file=open("pid", "w"), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The tool, and one tiny module where it looks for the lock."""
    for name in ("sentinel/adapters", "tests/adapters", "tools"):
        (tmp_path / name).mkdir(parents=True)
    for package in ("sentinel", "sentinel/adapters"):
        (tmp_path / package / "__init__.py").touch()
    shutil.copytree(ROOT / "tools" / "mutants", tmp_path / "tools" / "mutants")
    (tmp_path / "tools" / "mutants" / "explained.toml").write_text("[explained]\n")
    (tmp_path / "sentinel" / "adapters" / "lock.py").write_text(CODE)
    (tmp_path / "tests" / "adapters" / "test_state_files.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # noqa: S607
    return tmp_path


def run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env=dict(os.environ, PYTHONPATH=str(tree)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def tried(tree: Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, the lock's row, and what was said."""
    ran = run(tree, "-m", "tools.mutants", "--area", "lock", "--workers", "1", "--json")
    assert ran.stdout, ran.stderr
    (row,) = json.loads(ran.stdout)
    return ran.returncode, row, ran.stderr


def test_a_change_is_noticed_by_its_test_and_survives_without_it(tree: Path) -> None:
    names = [f"sentinel/adapters/lock.py::stale: {c}" for c in ("age_s >= 120 -> (age_s > 120)", "120 -> (121)")]
    code, row, said = tried(tree)
    assert (code, row["tried"], row["noticed"], row["share"]) == (1, 2, 0, 0.0)
    assert [survivor["name"] for survivor in row["survivors"]] == names
    assert "left out: tests/adapters/test_state_files.py::test_that_fails_on_the_unchanged_code" in said
    with (tree / "tests" / "adapters" / "test_state_files.py").open("a") as file:
        file.write(SHARP)
    (tree / "tools" / "mutants" / "explained.toml").write_text(f'[explained]\n"{names[1]}" = "a reason"\n')
    code, row, _ = tried(tree)
    assert (code, row["tried"], row["noticed"], row["explained"]) == (0, 1, 1, 1)
    assert (tree / "sentinel" / "adapters" / "lock.py").read_text() == CODE


@pytest.mark.full
def test_a_change_that_hangs_is_noticed_and_ended_with_all_that_it_started(tree: Path) -> None:
    (tree / "tests" / "adapters" / "test_state_files.py").write_text(HANGS)
    script = """
from pathlib import Path
from tools.mutants.trying import Copy
print(Copy(Path.cwd(), Path("copy")).passes(["tests/adapters/test_state_files.py"], timeout_s=3))
"""
    ran = run(tree, "-c", script)
    assert ran.stdout == "False\n", ran.stderr
    started = [p for p in psutil.process_iter() if p.pid == int((tree / "copy" / "pid").read_text())]
    assert all(p.status() == psutil.STATUS_ZOMBIE for p in started)  # where nothing reaps orphans
