"""`sentinel bisect --dry-run` where no probe can be started: it says so, as for any other refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.diverged_runs import diverged_run

COMMANDS = """\
[launcher]
kind = "commands"
[commands]
start = ["false", "{name}"]
stop = ["false", "{job}"]
list = ["true"]
"""


def sentinel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "sentinel", words[0], "--run", str(folder / "a.toml"), *words[1:]]
    return subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with an incident, whose jobs are started by commands."""
    diverged_run(tmp_path)
    text = (tmp_path / "a.toml").read_text()
    (tmp_path / "a.toml").write_text(text.replace('[launcher]\ncommand = ["true"]\n', COMMANDS))
    watched = sentinel(tmp_path, "watch", "--once", "--observe")
    assert "incident-1" in (tmp_path / "s" / "incidents.jsonl").read_text(), watched.stderr
    return tmp_path


@pytest.mark.full
def test_a_dry_run_under_commands_says_what_would_be_refused_and_the_command_itself_is_wrong_usage(run: Path) -> None:
    why = "[launcher] kind is 'commands': sentinel does not know how to start a probe"
    dry = sentinel(run, "bisect", "--dry-run")
    assert (dry.returncode, dry.stdout) == (1, f"would be refused: {why}\n"), dry.stderr
    as_json = sentinel(run, "bisect", "--dry-run", "--json")
    assert (as_json.returncode, json.loads(as_json.stdout)["refusal"]) == (1, why)
    meant = sentinel(run, "bisect")
    assert (meant.returncode, why in meant.stderr) == (2, True)
