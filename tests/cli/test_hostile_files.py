"""Whatever stands in the place of a file, the command that reads it ends in time and memory, with a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.hostile_files import COMMANDS, FEW

ROOT = Path(__file__).parents[2]


def answers(*words: str) -> list[str]:
    """A process of its own: what the other tests have imported would hide how much a command takes."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cli.hostile_files", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()


@pytest.mark.full
def test_the_worst_files_are_answered_with_a_sentence() -> None:
    assert answers("--few") == [f"{len(FEW)} cases"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", sorted({words[0] for words in COMMANDS}))
def test_every_file_that_a_command_reads_may_be_hostile(command: str) -> None:
    *wrong, count = answers(command)
    assert wrong == []
    assert count.endswith(" cases")
