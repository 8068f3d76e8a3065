"""After a rollback: the restart logs to a branch of the W&B run. The real client, its offline files, and a stub for the
server, which checks each request's variables by what the client's own query declares of them; no W&B runs here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.act.wandb_branches import WandbBranches
from sentinel.adapters.wandb import WandbRun
from sentinel.plan.restart.actions import BranchWandb
from sentinel.sources.wandb_runs import offline_runs, rows_of
from tests.adapters.pagers import environment
from tests.adapters.wandb_stub import KEY, Run, Stub, misfit, wandb_stub

pytest.importorskip("wandb", reason="W&B's client has an environment of its own: make wandb")

# A trainer that leaves _step to W&B: FIRST and LAST step to log, WORDS for wandb.init
TRAINER = """
import json, sys, wandb
first, last, words = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
run = wandb.init(project="pretraining", entity="lab", **words)
for step in range(first, last + 1):
    run.log({"train/loss": 2.0 + step / 1000, "iteration": step})
run.finish()
"""


def trained() -> Run:
    """Steps 1 to 40, an earlier restart from 20, and on to 60."""
    steps = [*range(1, 41), *range(21, 61)]
    rows = [{"_step": n, "_timestamp": 1.7e9 + n, "train/loss": 2.0, "iteration": s} for n, s in enumerate(steps)]
    return Run("abc123", display_name="tr8", state="crashed", history=rows)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stub]:
    with wandb_stub(trained()) as running:
        for name, value in variables(running, tmp_path).items():
            monkeypatch.setenv(name, value)
        yield running
    assert running.unknown == []
    assert running.keys <= {KEY, ""}  # the trainer's client asks for one thing without a key


def variables(stub: Stub, folder: Path) -> dict[str, str]:
    return {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": stub.url, "HOME": str(folder)}


def branches(where: Path, how: str, **more: Any) -> WandbBranches:
    of = WandbRun(entity="lab", project="pretraining", timeout_s=20, after_rollback=how, **more)  # type: ignore[arg-type]
    return WandbBranches(where / "state" / "wandb-branches.json", "tr8", of)


def rolled_back(at: WandbBranches, how: str, step: int = 30, rollback: str = "incident-1-r1") -> str:
    """What became of it."""
    at.begin(BranchWandb(how, step, "incident-1", rollback))
    return at.read()[-1].outcome


def train(first: int, last: int, env: dict[str, str], folder: Path, **words: Any) -> None:
    command = [sys.executable, "-c", TRAINER, str(first), str(last), json.dumps(words)]
    done = subprocess.run(
        command, env=environment(**env), cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


def line(run: Run) -> list[int]:
    return [row["iteration"] for row in run.history]


def test_a_copy_holds_one_line_per_step_and_the_restarted_trainer_goes_on_with_it(stub: Stub, tmp_path: Path) -> None:
    at = branches(tmp_path, "copy")
    assert at.environment() == {}
    outcome = rolled_back(at, "copy")
    assert outcome.startswith("30 lines of abc123 copied (created)"), outcome
    made = stub.runs["abc123-incident-1-r1"]
    assert (line(made), made.group, made.job_type) == ([*range(1, 31)], "abc123", "")
    assert "before it lab/pretraining/abc123, whose later steps stay there" in made.notes
    told = {"WANDB_RUN_ID": "abc123-incident-1-r1", "WANDB_RESUME": "allow", "WANDB_RUN_GROUP": "abc123"}
    assert at.environment() == told

    for first, last in ((31, 40), (41, 50)):  # the restart, and a requeue of it
        train(first, last, variables(stub, tmp_path) | at.environment(), tmp_path)
    assert line(made) == [*range(1, 51)]
    assert [row["_step"] for row in made.history] == sorted({row["_step"] for row in made.history})
    assert stub.written_to() == {"abc123-incident-1-r1"}
    assert stub.runs["abc123"] == trained()

    assert rolled_back(at, "copy", 45, "incident-1-r2").startswith("45 lines of abc123-incident-1-r1 copied")
    assert line(stub.runs["abc123-incident-1-r2"]) == [*range(1, 46)]
    assert at.environment()["WANDB_RUN_ID"] == "abc123-incident-1-r2"
    for rollback, then in (("incident-1-r2", "abc123-incident-1-r1"), ("incident-1-r1", "abc123")):
        at.undo(rollback)
        assert at.environment()["WANDB_RUN_ID"] == then
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("server_does", [True, False])
def test_a_fork_is_asked_for_and_a_copy_made_where_the_server_makes_none(
    stub: Stub, tmp_path: Path, server_does: bool
) -> None:
    stub.branches = server_does
    at = branches(tmp_path, "fork")
    if not server_does:
        at = branches(tmp_path, "fork", run_id="abc123")
    outcome = rolled_back(at, "fork")
    made = stub.runs["abc123-incident-1-r1"]
    point = made.config["_wandb"]["value"].get("branch_point") if server_does else None
    if server_does:
        assert outcome == "forked from abc123 at its line 49"
        assert point["run_id"] == "abc123"
        assert made.history == trained().history[:50]
    else:
        assert outcome.startswith("30 lines of abc123 copied")
        assert "the server made no fork" in outcome
        assert line(made) == [*range(1, 31)]
    assert stub.runs["abc123"] == trained()


@pytest.mark.parametrize("server_does", [True, False])
def test_a_rewind_cuts_the_run_itself_and_only_then_writes_to_it(stub: Stub, tmp_path: Path, server_does: bool) -> None:
    stub.branches = server_does
    at = branches(tmp_path, "rewind")
    outcome = rolled_back(at, "rewind")
    if server_does:
        assert outcome == "abc123 was rewound to its line 49"
        assert at.environment()["WANDB_RUN_ID"] == "abc123"
        assert stub.runs["abc123"].history == trained().history[:50]
    else:
        assert "the server made no rewind" in outcome
        assert at.environment()["WANDB_RUN_ID"] == "abc123-incident-1-r1"
        assert stub.runs["abc123"].history == trained().history


def test_a_rollback_does_not_wait_for_a_wandb_that_does_not_answer(stub: Stub, tmp_path: Path) -> None:
    stub.deaf = True
    at = branches(tmp_path, "copy", run_id="abc123")
    outcome = rolled_back(at, "copy")
    assert outcome.startswith("without the shared history: W&B at 127.0.0.1 can't be reached")
    assert at.environment()["WANDB_RUN_ID"] == "abc123-incident-1-r1"
    assert KEY not in (tmp_path / "state" / "wandb-branches.json").read_text()
    assert at.seen().branched == {"incident-1-r1"}


def test_offline_the_history_is_an_offline_run_of_its_own_and_undo_renames_it(tmp_path: Path) -> None:
    env = {"WANDB_MODE": "offline", "HOME": str(tmp_path)}
    train(1, 60, env, tmp_path, id="abc123")
    folder = tmp_path / "wandb"
    before = {path: path.read_bytes() for path in folder.rglob("*.wandb")}
    at = branches(tmp_path, "copy", folder=folder)
    assert rolled_back(at, "copy") == "30 lines of the offline run abc123 copied"
    (copied,) = offline_runs(folder)["abc123-incident-1-r1"]
    rows = list(rows_of(copied))
    assert [row["iteration"] for row in rows] == [*range(1, 31)]
    assert [row["_step"] for row in rows] == [*range(30)]
    train(31, 35, env | at.environment(), tmp_path)
    assert len(offline_runs(folder)["abc123-incident-1-r1"]) == 2
    assert {path: path.read_bytes() for path in before} == before

    at.undo("incident-1-r1")
    assert at.environment() == {"WANDB_RUN_ID": "abc123", "WANDB_RESUME": "allow"}
    assert not copied.exists()
    assert (copied.parent.with_name(f"undone-{copied.parent.name}") / copied.name).exists()


def test_the_stub_refuses_variables_that_do_not_fit_the_clients_query() -> None:
    query = "mutation RewindRun ($runName: String!, $metricValue: Float!) { rewindRun(input: {}) { id } }"
    assert misfit(query, {"runName": "a", "metricValue": 3}) is None
    assert misfit(query, {"runName": "a", "metricValue": "3"}) == "metricValue is Float!, not '3'"
    assert misfit(query, {"runName": "a"}) == "metricValue is Float!, and was not given"
