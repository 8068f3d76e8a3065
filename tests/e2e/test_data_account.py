"""Reported bugs of other frameworks, rebuilt in a small loop, as the commands and the watch tell of them; and real
trainers, whose chains of resumes are clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.data_chains.loop import BUGS, RightLoader, life, nan_called_finished, second_resume_from_zero
from sentinel.cli.commands import app
from tests.hooks.trainer import environment, train
from tests.support.log_lines import lines_of


def configured(folder: Path) -> str:
    (folder / "checkpoints").mkdir(exist_ok=True)
    path = folder / "a.toml"
    path.write_text(
        f'[run]\nname = "a"\ncheckpoints = "{folder / "checkpoints"}"\nstate_dir = "{folder}"\n'
        '[launcher]\nkind = "elsewhere"\n[policy]\nconfirm_within_s = 0.001\n'
    )
    return str(path)


def asked(command: str, run: str) -> tuple[int, dict[str, Any]]:
    shown = CliRunner().invoke(app, [command, "--run", run, "--json"])
    return shown.exit_code, json.loads(shown.stdout)


@pytest.mark.parametrize("name", BUGS)
def test_each_reported_bug_is_named_and_the_run_is_not_finished(tmp_path: Path, name: str) -> None:
    bug, attempt, said = BUGS[name]
    bug(tmp_path)
    run = configured(tmp_path)
    code, account = asked("data", run)
    assert (code, account["closes"]) == (1, False)
    assert said in account["reason"]
    assert [one["attempt"] for one in account["faults"]] == ([attempt] if said != "nan" else [])
    code, status = asked("status", run)
    assert (code, status["verdict"] in ("down", "diverged")) == (1, True), status["reason"]


def test_a_clean_chain_closes_and_is_finished(tmp_path: Path) -> None:
    saved = None
    for attempt, to in enumerate((12, 22, 32, 41, 50, 60), 1):
        ends = "finished" if attempt == 6 else None
        saved = life(tmp_path, attempt, RightLoader(), saved, to=to, every=5, epochs=1, planned=60, ends=ends)
    run = configured(tmp_path)
    code, account = asked("data", run)
    assert (code, account["faults"], account["closes"]) == (0, [], True)
    assert account["samples"] == {"once": 240, "again": 0, "never": None, "out_of_order": None}
    code, status = asked("status", run)
    assert (code, status["verdict"]) == (0, "finished"), status["reason"]


def test_a_loss_that_is_nan_at_the_last_step_alone_is_no_end(tmp_path: Path) -> None:
    nan_called_finished(tmp_path, first=60)
    code, status = asked("status", configured(tmp_path))
    assert (code, status["verdict"] in ("down", "diverged")) == (1, True)
    assert "nan" in status["reason"]


def test_the_watch_alarms_at_the_first_steps_of_the_faulty_resume(tmp_path: Path) -> None:
    second_resume_from_zero(tmp_path)
    journal = tmp_path / "attempts" / "0003.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:5]))  # its start, and four steps
    watch = [sys.executable, "-m", "sentinel", "watch", "--once", "--observe", "--run", configured(tmp_path)]
    subprocess.run(watch, env=dict(os.environ), capture_output=True, timeout=120, check=False)
    events = lines_of(tmp_path / "incidents.jsonl")
    (told,) = [e for e in events if e["event"] == "alert_firing" and e["topic"] == "bad_start"]
    assert told["reason"].startswith("data from epoch start: step 41 is trained on the batch of step 1 again")


def told(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `sentinel data` and `sentinel status` say of a real trainer's run."""
    (folder / "a.toml").write_text('[run]\nname = "a"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n')
    documents = []
    for command in ("data", "status"):
        words = [sys.executable, "-m", "sentinel", command, "--json", "--run", "a.toml"]
        ran = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, timeout=100, check=False)
        documents.append(json.loads(ran.stdout))
    return documents[0], documents[1]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_chain_of_the_reference_trainer_closes(tmp_path: Path) -> None:
    more = ("--batch-size-warmup", "1", "1", "200", "--micro-batch", "1", "--zero", "2")
    for steps in (14, 30, 47, 60):  # resumes from a save before the end, and from one at the end
        train(tmp_path, "--steps", str(steps), "--save-interval", "10", "--lr-decay", "80", *more)
    account, ended = told(tmp_path)
    assert (account["attempts"], account["faults"], account["closes"]) == ([1, 2, 3, 4], [], True)
    assert account["samples"]["once"] > 0
    assert {account["samples"][name] for name in ("again", "never", "out_of_order")} == {0}
    assert ended["verdict"] == "finished"


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("samples", "options"),
    [
        (24, ("--save_strategy=epoch",)),  # 12 steps an epoch: each resume is at its end
        (23, ("--dataloader_drop_last", "--gradient_accumulation_steps=2")),
    ],
)
def test_a_chain_of_hugging_faces_trainer_closes(tmp_path: Path, samples: int, options: tuple[str, ...]) -> None:
    script = Path(__file__).with_name("huggingface_chain.py")
    for after in (14, 25, 40):
        words = [sys.executable, str(script), str(tmp_path), str(after), str(samples), *options]
        subprocess.run(words, env=environment(), capture_output=True, timeout=200, check=True)
    account, ended = told(tmp_path)
    assert (account["faults"], account["closes"]) == ([], True), account
    assert account["samples"]["again"] == 0
    assert account["samples"]["out_of_order"] in (0, None)  # with drop_last the positions are not the samples'
    assert ended["verdict"] == "finished"
