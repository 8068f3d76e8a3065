"""What a restarted job is told of its W&B run, without W&B's client: neither a rollback nor its undo needs it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sentinel.act.wandb_child import descended
from sentinel.config import load_config
from sentinel.daemon.wiring import neighbours_of
from sentinel.plan.restart.actions import BranchWandb
from sentinel.vocabulary.errors import QuarantineError

CONFIG = """[run]
name = "a"
checkpoints = "c"
state_dir = "s"
[launcher]
command = ["sh", "-c", "echo $WANDB_RUN_ID $WANDB_RESUME $WANDB_RUN_GROUP."]
[wandb]
run_id = "abc"
after_rollback = "copy"
entity = "lab"
project = "p"
url = "http://127.0.0.1:9"
"""


def test_the_branch_is_in_the_environment_of_every_later_start_and_undo_names_the_run_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (tmp_path / "a.toml").write_text(CONFIG)
    near = neighbours_of(load_config(tmp_path / "a.toml"))
    branches = near.wandb
    assert branches is not None

    def printed(number: int) -> str:
        near.launcher.start(None, None, (), follow_up=False)
        for _ in range(200):
            if near.job_log.exists() and len(lines := near.job_log.read_text().splitlines()) == number:
                return lines[-1]
            time.sleep(0.05)
        raise AssertionError("the job printed nothing")

    assert printed(1) == "."
    branches.begin(BranchWandb("copy", 10, "incident-1", "incident-1-r1"))
    (branch,) = branches.read()
    assert branch.outcome.startswith("without the shared history: ")
    assert [printed(n) for n in (2, 3)] == ["abc-incident-1-r1 allow abc."] * 2
    assert "WANDB_RUN_ID=abc-incident-1-r1 " in near.launcher.start_commands(())[0]
    branches.begin(BranchWandb("copy", 5, "incident-1", "incident-1-r2"))
    assert printed(4) == "abc-incident-1-r2 allow abc."
    branches.undo("incident-1-r2")
    branches.undo("incident-1-r1")
    assert printed(5) == "abc allow ."
    (tmp_path / "s" / "wandb-branches.json").write_text('{"branches": [1]}')
    with pytest.raises(QuarantineError, match="wandb-branches"):
        branches.environment()


@pytest.mark.parametrize(
    ("steps", "until", "lines"),
    [
        ([1, 2, 3, 4], 3, [0, 1, 2]),
        ([1, 2, 3, 2, 3, 4], 3, [0, 3, 4]),  # restarted after 1
        ([1, 2, 3, 2], 3, [0, 3]),  # what the restart has not reached again is of the old line
        ([1, 1, None, 2, 2], 1, [0, 1, 2]),  # training and validation of one step; a row without a step
        ([10, 20, 30, 15, 25], 20, [0, 3]),
        ([None, 5], 3, [0]),
        ([], 3, []),
    ],
)
def test_the_line_of_descent_has_each_step_as_it_was_logged_last(
    steps: list[int | None], until: int, lines: list[int]
) -> None:
    rows = [{"_step": n} | ({"it": step} if step is not None else {}) for n, step in enumerate(steps)]
    assert [row["_step"] for row in descended(rows, "it", until)] == lines
