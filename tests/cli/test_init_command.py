"""`sentinel init`: what it writes, what it asks, and what the trainer is to be told."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sentinel.cli.commands import app
from sentinel.config import load_config
from sentinel.vocabulary.errors import ConfigError
from tests.support.there import there

ROOT = Path(__file__).parents[2]
SLURM = ("--launcher", "slurm")


def init(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["init", "tr8", "--config-dir", str(folder), *options], standalone_mode=False)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_the_launcher_is_written_down(tmp_path: Path) -> None:
    init(tmp_path, *SLURM)
    assert load_config(tmp_path / "tr8.toml").launcher.kind == "slurm"


@pytest.mark.parametrize("config_dir", ["runs", "elsewhere/runs"])
def test_the_save_folder_counts_from_where_it_is_typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config_dir: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SENTINEL_STATE_DIR", raising=False)
    init(Path(config_dir), "--checkpoints", "out/saves")
    run = load_config(tmp_path / config_dir / "tr8.toml").run
    assert run.checkpoints.resolve() == tmp_path / "out" / "saves"
    monkeypatch.chdir("/")
    run = load_config(tmp_path / config_dir / "tr8.toml").run
    assert there(run.state_dir).resolve() == tmp_path / ".sentinel" / "tr8"


@pytest.mark.parametrize("state_dir", ["state", "/shared/state"])
def test_the_state_folder_is_the_one_that_the_hook_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state_dir: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SENTINEL_STATE_DIR", state_dir)
    init(Path("runs"))
    assert there(load_config(tmp_path / "runs" / "tr8.toml").run.state_dir).resolve() == tmp_path / state_dir


def test_event_files_that_trainer_writes_below_the_save_folder_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, files in {"bare": [], "empty": ["runs"], "whole": ["runs/Nov23_19-54-58_node7"]}.items():
        for folder in files:
            (tmp_path / name / folder).mkdir(parents=True)
    (tmp_path / "whole/runs/Nov23_19-54-58_node7/events.out.tfevents.1763927698.node7.42.0").write_bytes(b"")
    for name in ("bare", "empty", "whole"):
        told = init(tmp_path / f"{name}-config", "--checkpoints", name)
        found = load_config(tmp_path / f"{name}-config" / "tr8.toml").run.tensorboard
        assert (found is not None and found.resolve() == tmp_path / "whole/runs") == (name == "whole")
        assert ("event files found in whole/runs" in told) == (name == "whole")


def test_the_command_is_run_where_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    init(Path("runs"), "--command", "python", "--command", "train.py")
    assert load_config(Path("runs/tr8.toml")).launcher.working_directory.resolve() == tmp_path.resolve()


def test_the_address_is_what_the_trainers_attach_is_to_be_given(tmp_path: Path) -> None:
    assert 'attach(engine, run="tr8", address="::")' in init(tmp_path, "--metrics-address", "::")


def test_with_slurm_and_nobody_to_ask_nothing_listens_beyond_the_node(tmp_path: Path) -> None:
    assert 'address="127.0.0.1"' in init(tmp_path, *SLURM)


def test_without_slurm_nothing_is_asked_and_nothing_said(tmp_path: Path) -> None:
    assert "attach(" not in init(tmp_path)


@pytest.mark.parametrize(("typed", "address"), [(b"0.0.0.0\n", "0.0.0.0"), (b"\n", "127.0.0.1")])  # noqa: S104
def test_with_slurm_a_person_is_asked(tmp_path: Path, typed: bytes, address: str) -> None:
    terminal, theirs = pty.openpty()
    os.write(terminal, typed)
    ran = subprocess.run(
        [sys.executable, "-m", "sentinel", "init", "tr8", *SLURM],
        cwd=tmp_path,
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=200,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        check=True,
    )
    os.close(terminal)
    os.close(theirs)
    assert "On which address should its /metrics listen?" in ran.stdout
    assert f'address="{address}"' in ran.stdout


@pytest.mark.parametrize("recipe", ["ray", "gridengine", "kubectl"])
def test_a_recipe_is_written_with_its_files_and_its_commands_find_them(tmp_path: Path, recipe: str) -> None:
    told = init(tmp_path, "--launcher", recipe)
    config = load_config(tmp_path / "tr8.toml")
    launcher, commands = config.launcher, config.commands
    assert (launcher.kind, launcher.job_name) == ("commands", "tr8")
    assert launcher.working_directory == tmp_path / "tr8-launcher"
    files = {path.name for path in launcher.working_directory.iterdir()}
    words = {word for command in (commands.start, commands.stop, commands.list, commands.log) for word in command}
    assert {word for word in words if word.endswith((".py", ".sh", ".yaml"))} <= files
    assert ("jobset.yaml, pytorchjob.yaml" if recipe == "kubectl" else "into train.sh") in told
    shipped = tomllib.loads((ROOT / "examples" / "launchers" / recipe / "launcher.toml").read_text())
    assert shipped["commands"] == {key: list(getattr(commands, key)) for key in shipped["commands"]}
    (tmp_path / "tr8.toml").unlink()
    with pytest.raises(ConfigError, match="tr8-launcher exists already; nothing was changed"):
        init(tmp_path, "--launcher", recipe)


def test_another_launcher_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="local, slurm, elsewhere, gridengine, kubectl, ray, not 'pbs'"):
        init(tmp_path, "--launcher", "pbs")
    assert list(tmp_path.iterdir()) == []
