"""`sentinel status` of several runs: a line each, the largest exit code, and none hides another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sentinel.cli.commands import app
from tests.triage.runs import diverged, sample, write_attempt


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Configurations of a run that diverged, of one that is healthy, and a file that holds none."""
    folder = tmp_path / "runs"
    folder.mkdir()
    diverged(tmp_path / "ill")
    (tmp_path / "ill" / "state" / "attempts" / "0002.jsonl").unlink()
    for name in ("ill", "well"):
        (folder / f"{name}.toml").write_text(
            f'[run]\nname = "{name}"\ncheckpoints = "{tmp_path / name / "checkpoints"}"\n'
            f'state_dir = "{tmp_path / name / "state"}"\n[launcher]\nkind = "elsewhere"\n'
        )
    (tmp_path / "well" / "checkpoints").mkdir(parents=True)
    write_attempt(tmp_path / "well" / "state", 1, [sample(1, step, 3) for step in range(1, 201)])
    return folder


@pytest.mark.parametrize("words", [[], ["--all"]])
def test_several_runs_have_a_line_each_and_the_largest_exit_code(runs: Path, words: list[str]) -> None:
    shown = CliRunner().invoke(app, ["status", *words, "--config-dir", str(runs)])
    ill, well = shown.stdout.splitlines()
    assert ill.startswith("ill: diverged at step 400, ")
    assert well.startswith("well: healthy at step 200, loss ")
    assert ill.endswith("(mode observe)")
    assert shown.exit_code == 1


def test_a_run_that_can_not_be_looked_at_hides_no_other(runs: Path) -> None:
    (runs / "broken.toml").write_text("[run]\nnam = 1\n")
    shown = CliRunner().invoke(app, ["status", "--config-dir", str(runs), "--json"])
    broken, ill, well = json.loads(shown.stdout)
    assert "has no key 'nam'" in broken.pop("problem")
    assert broken.pop("file") == str(runs / "broken.toml")
    assert set(broken.values()) == {"broken", None}
    assert [(row["run"], row["verdict"], row["mode"], row["global_step"], row["problem"]) for row in (ill, well)] == [
        ("ill", "diverged", "observe", 400, None),
        ("well", "healthy", "observe", 200, None),
    ]
    assert shown.exit_code == 2


def test_the_only_run_is_shown_whole_and_as_one_line_where_asked(runs: Path) -> None:
    (runs / "ill.toml").unlink()
    whole = CliRunner().invoke(app, ["status", "--config-dir", str(runs)])
    line = CliRunner().invoke(app, ["status", "--all", "--config-dir", str(runs)])
    assert len(whole.stdout.splitlines()) > 2
    assert len(line.stdout.splitlines()) == 1
    assert whole.exit_code == line.exit_code == 0
