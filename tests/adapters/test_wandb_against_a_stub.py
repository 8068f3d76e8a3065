"""Incidents and runs in W&B: the real `wandb` client against a stub, which says of itself what it is; no W&B runs here.

The client starts a service of its own and keeps it for its process, so each command is a process here, as in life.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.pagers import environment
from tests.adapters.wandb_stub import KEY, Run, Stub, wandb_stub
from tests.support.log_lines import ALWAYS

pytest.importorskip("wandb", reason="W&B's client has an environment of its own: make wandb")

ALARM = 1_700_000_000.0
OPENED = {
    **ALWAYS["opened"],
    "event": "opened",
    "incident": "incident-1",
    "time_unix_s": ALARM,
    "attempt": 1,
    "onset_range": [300, 310],
    "alarm_step": 340,
    "reason": "the loss rose from 2.0 to 7.0",
}
CLOSED = {
    "event": "closed",
    "incident": "incident-1",
    "time_unix_s": ALARM + 900,
    "outcome": "recovered",
    "reason": "back on its trend",
}


def logged(step: int, *, count: int, loss: float, when: float) -> dict[str, float]:
    """A line of the trainer's, which calls its step `iteration` and leaves `_step` to W&B."""
    return {"_step": count, "_timestamp": when, "train/loss": loss, "iteration": step, "lr": 1e-4}


def trained() -> Run:
    """Logged each second step; after the alarm a restart from step 250 went on in the same run."""
    before = [logged(2 * i, count=i, loss=2.0 if i < 150 else 7.0, when=ALARM - 170 + i) for i in range(1, 171)]
    after = [logged(250 + 2 * i, count=170 + i, loss=1.9, when=ALARM + 600 + i) for i in range(1, 100)]
    return Run("abc123", display_name="tr8", state="running", history=[*before, *after])


@pytest.fixture
def stub() -> Iterator[Stub]:
    with wandb_stub(trained()) as running:
        yield running
    assert running.unknown == []
    assert running.keys <= {KEY}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The incident log of a configured run."""
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "tr8.toml").write_text(
        '[run]\nname = "tr8"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        '[wandb]\nentity = "lab"\nproject = "pretraining"\ntimeout_s = 60\n'
    )
    path = state / "incidents.jsonl"
    path.write_text(json.dumps(OPENED) + "\n")
    return path


def sentinel(stub: Stub, folder: Path, *words: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    """The command, with nothing of this machine's in its environment."""
    env = environment(WANDB_API_KEY=key, WANDB_BASE_URL=stub.url, HOME=str(folder))
    command = [sys.executable, "-m", "sentinel", *words]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def push(stub: Stub, folder: Path, key: str = KEY) -> dict[str, str]:
    """{incident: what became of it}"""
    done = sentinel(stub, folder, "dashboards", "push", "--wandb", "--run", "tr8.toml", "--json", key=key)
    assert done.returncode == 0, done.stderr
    return {line["name"]: line["outcome"] for line in json.loads(done.stdout)}


def test_an_incident_is_a_run_of_its_own_over_the_trainers_loss_and_a_second_push_adds_nothing(
    stub: Stub, log: Path, tmp_path: Path
) -> None:
    as_it_was = trained()
    assert push(stub, tmp_path) == {"incident-1": "created"}
    drawn = stub.runs["abc123-incident-1"]
    points = [(row["_step"], row["iteration"], row["train/loss"]) for row in drawn.history]
    assert points == [(i, 2 * i, 7.0) for i in range(150, 171)]
    assert (drawn.display_name, drawn.job_type, drawn.group) == ("tr8: incident-1", "incident", "")
    assert drawn.tags == ["sentinel", "incident-1", "open"]
    assert "onset at step 300 to 310, seen at 340: the loss rose from 2.0 to 7.0" in drawn.notes
    assert drawn.state == "finished"

    asked = len(stub.asked)
    assert push(stub, tmp_path) == {"incident-1": "unchanged"}
    assert [each for each in stub.asked[asked:] if each[0] in ("UpsertBucket", "file_stream")] == []

    log.write_text(json.dumps(OPENED) + "\n" + json.dumps(CLOSED) + "\n")
    assert push(stub, tmp_path) == {"incident-1": "changed"}
    assert drawn.tags == ["sentinel", "incident-1", "recovered"]
    assert drawn.notes.endswith("closed, recovered: back on its trend")
    assert [row["_step"] for row in drawn.history] == list(range(150, 171))
    assert push(stub, tmp_path) == {"incident-1": "unchanged"}

    assert stub.written_to() == {"abc123-incident-1"}
    assert stub.runs["abc123"] == as_it_was


def test_what_was_cut_short_is_gone_on_with_where_it_stopped(stub: Stub, log: Path, tmp_path: Path) -> None:
    assert push(stub, tmp_path) == {"incident-1": "created"}
    drawn = stub.runs["abc123-incident-1"]
    del drawn.history[7:]
    drawn.summary = dict(drawn.history[-1])
    assert push(stub, tmp_path) == {"incident-1": "created"}
    assert [row["_step"] for row in drawn.history] == list(range(150, 171))


def test_what_is_not_seen_there_after_it_was_sent_is_said(stub: Stub, log: Path, tmp_path: Path) -> None:
    stub.swallows = True
    assert push(stub, tmp_path) == {"incident-1": "sent, and not seen there yet"}


def test_of_several_runs_of_the_name_the_one_that_saw_the_incident_is_drawn_over(
    stub: Stub, log: Path, tmp_path: Path
) -> None:
    earlier = [logged(2 * i, count=i, loss=2.5, when=ALARM - 9000 + i) for i in range(1, 200)]
    stub.runs["older"] = Run("older", display_name="tr8", history=earlier)
    stub.runs["elsewhere"] = Run("elsewhere", display_name="tr9", history=earlier)
    assert push(stub, tmp_path) == {"incident-1": "created"}
    assert stub.written_to() == {"abc123-incident-1"}


def test_a_run_that_logged_nothing_there_is_told_and_nothing_is_made(stub: Stub, log: Path, tmp_path: Path) -> None:
    del stub.runs["abc123"].history[100:]
    assert push(stub, tmp_path) == {"incident-1": "nothing was logged there between its steps 300 and 340"}
    assert stub.written_to() == set()


def test_runs_in_wandb_are_compared_and_exported_by_their_address(stub: Stub, tmp_path: Path) -> None:
    history = [logged(i, count=i, loss=1.0, when=ALARM + i) for i in range(400)]
    stub.runs["other"] = Run("other", history=history)
    names = ("wandb:lab/pretraining/other", "wandb:lab/pretraining/abc123")
    done = sentinel(stub, tmp_path, "compare", *names, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["runs"] == list(names)
    assert found["leader"] == names[0]
    table = tmp_path / "samples.csv"
    assert sentinel(stub, tmp_path, "export", names[0], "-o", str(table)).returncode == 0
    assert len(table.read_text().splitlines()) == 401
    assert stub.written_to() == set()


def test_no_key_no_run_and_no_answer_each_have_their_word_and_exit_code(stub: Stub, tmp_path: Path) -> None:
    name = "wandb:lab/pretraining/nothing"
    missing = sentinel(stub, tmp_path, "export", name, "-o", "samples.csv")
    assert (missing.returncode, missing.stderr) == (
        2,
        "sentinel: 127.0.0.1 has no run lab/pretraining/nothing, or this key may not see it\n",
    )
    short = sentinel(stub, tmp_path, "export", "wandb:lab/nothing", "-o", "samples.csv")
    assert short.returncode == 2
    assert "should look like wandb:ENTITY/PROJECT/RUN-ID" in short.stderr
    stub.deaf = True
    away = sentinel(stub, tmp_path, "export", name, "-o", "samples.csv")
    assert away.returncode == 3
    assert away.stderr == "sentinel: W&B at 127.0.0.1 can't be reached: it does not answer as a W&B server\n"
    for done in (missing, away):
        assert KEY not in done.stdout + done.stderr


def test_an_answer_that_fails_half_way_is_an_error_with_its_word_and_leaves_no_table(
    stub: Stub, tmp_path: Path
) -> None:
    stub.deaf_to = "HistoryPage"
    done = sentinel(stub, tmp_path, "export", "wandb:lab/pretraining/abc123", "-o", "samples.csv")
    assert (done.returncode, "W&B at 127.0.0.1 can't be reached" in done.stderr) == (3, True), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "samples.csv").exists()


@pytest.mark.parametrize("how", ["drips_on", "floods_on"])
def test_an_answer_that_drips_or_never_ends_costs_its_time_and_bounded_memory(
    stub: Stub, tmp_path: Path, how: str
) -> None:
    setattr(stub, how, "HistoryPage")
    done = sentinel(stub, tmp_path, "export", "wandb:lab/pretraining/abc123", "-o", "samples.csv")
    assert (done.returncode, "W&B at 127.0.0.1 can't be reached" in done.stderr) == (3, True), done.stderr


def test_a_key_that_is_not_known_is_refused_and_is_in_no_file_and_no_message(
    stub: Stub, log: Path, tmp_path: Path
) -> None:
    stub.refuses = True
    done = sentinel(stub, tmp_path, "dashboards", "push", "--wandb", "--run", "tr8.toml")
    assert (done.returncode, KEY in done.stdout + done.stderr) == (2, False)
    assert "does not know the API key" in done.stderr
    stub.refuses = False
    (tmp_path / "key").write_text(f"{KEY}\n")
    with (tmp_path / "tr8.toml").open("a") as config:
        config.write('api_key_file = "key"\n')
    assert push(stub, tmp_path, key="") == {"incident-1": "created"}
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key"]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
