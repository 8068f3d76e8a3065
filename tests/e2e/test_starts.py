"""The reference trainer resumed, and started from scratch unseen: what the watch says of each start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live_trainer import attempts, build, configure, events, files, local, sentinel, training
from tests.hooks.trainer import environment, train
from tests.support.log_lines import lines_of

STEPS = ("--save-interval", "10", "--lr-decay", "60", "--zero", "1")


def watched(folder: Path) -> dict[str, Any]:
    """What the incident log has of the newest start, after one turn."""
    (folder / "gpt.toml").write_text('[run]\nname = "gpt"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n')
    words = [sys.executable, "-m", "sentinel", "watch", "--once", "--observe", "--run", "gpt.toml"]
    subprocess.run(words, cwd=folder, env=environment(), capture_output=True, timeout=100, check=False)
    events = lines_of(folder / "state" / "incidents.jsonl")
    return dict(next(e for e in reversed(events) if e["event"] == "start_audited"))


@pytest.mark.full
def test_a_resume_goes_on_and_a_start_without_latest_is_told(tmp_path: Path) -> None:
    train(tmp_path, "--steps", "26", *STEPS)
    train(tmp_path, "--steps", "29", *STEPS)  # from step 20: six steps are made a second time
    resumed = watched(tmp_path)
    assert (resumed["attempt"], resumed["verdict"]) == (2, "continued")
    confirmed = {check["what"] for check in resumed["checks"] if check["answer"] == "confirmed"}
    assert confirmed >= {"checkpoint", "state", "learning rate", "position", "data order", "loss", "gradient"}
    assert "Adam's step" in confirmed
    train(tmp_path, "--steps", "30", *STEPS)  # saves at its last step
    train(tmp_path, "--steps", "33", *STEPS)
    foreseen = {check["what"]: check["answer"] for check in watched(tmp_path)["checks"]}
    assert foreseen["data order"] == "confirmed"  # no step was made twice: by what the save foresaw
    (tmp_path / "checkpoints" / "latest").unlink()
    train(tmp_path, "--steps", "9", *STEPS)
    begun = watched(tmp_path)
    assert (begun["attempt"], begun["fault"]) == (5, "started from scratch")
    assert "global_step30" in begun["reason"]
    shown = [sys.executable, "-m", "sentinel", "checkpoints", "--json", "--run", "gpt.toml"]
    ran = subprocess.run(shown, cwd=tmp_path, env=environment(), capture_output=True, timeout=100, check=True)
    assert [one["tag"] for one in json.loads(ran.stdout)] == ["global_step10", "global_step20", "global_step30"]


def audited(run: Path, attempt: int) -> list[dict[str, Any]]:
    return [e for e in events(run) if e["event"] == "start_audited" and e["attempt"] == attempt]


@pytest.mark.full
@pytest.mark.parametrize("mode", ["act", "approve"])
def test_a_live_job_that_began_from_scratch_is_stopped_where_that_is_wanted_and_stays_down(
    tmp_path: Path, mode: str
) -> None:
    run = build(tmp_path)
    configure(run, local(run), mode=mode, policy="stop_bad_start = true")
    (run / "begins").write_text("5000 20")
    with training(run):
        pass
    (run / "end").unlink()
    (run / "begins").write_text("0 1000")  # within the test it saves nothing, and does not come to step 5000
    there = files(run)
    with training(run) as trainer:
        said = sentinel(run, "watch", over=lambda: audited(run, 2) and (mode != "act" or trainer.poll() is not None))
        for _ in range(2):
            sentinel(run, "watch", "--once")
        assert (trainer.poll() is not None) == (mode == "act"), said.stderr
    assert there <= files(run)
    assert attempts(run) == 2  # the crash is not restarted: a person starts it again
    (found,) = audited(run, 2)
    assert found["fault"] == "started from scratch"
