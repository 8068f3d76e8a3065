"""`watch` where the run's job is out of its sight, as in a pod: it tells well from ill, and does nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.vocabulary.numbers import dump_json
from tests.adapters.checkpoint_files import deepspeed
from tests.adapters.pagers import until
from tests.adapters.servers import running
from tests.support.log_lines import lines_of


def journal(folder: Path, losses: list[float], last_unix_s: float, host: str = "another-node") -> None:
    """A run's journal as a trainer on another machine has written it up to a moment, one step a second."""
    begun = last_unix_s - len(losses)
    started = {"host": host, "pid": 4711, "process_start_unix_s": begun - 5, "world_size": 1}
    lines = [{"kind": "run_started", "attempt": 1, "time_unix_s": begun, **started}]
    for step, loss in enumerate(losses, start=1):
        position = {"consumed_samples": 8 * step, "consumed_tokens": 1024 * step, "seqlen": 128, "lr": 1e-4}
        sample = {"kind": "sample", "attempt": 1, "global_step": step, "time_unix_s": begun + step, "loss": loss}
        lines.append({**sample, **position})
    (folder / "state" / "attempts").mkdir(parents=True)
    text = "".join(dump_json(line) + "\n" for line in lines)
    path = folder / "state" / "attempts" / "0001.jsonl"
    path.write_text(text)
    os.utime(path, (last_unix_s, last_unix_s))


def configured(folder: Path, kind: str) -> Path:
    path = folder / "a.toml"
    path.write_text(
        f'[run]\nname = "a"\ncheckpoints = "not-mounted"\nstate_dir = "state"\n[launcher]\nkind = "{kind}"\n'
        "[policy]\nconfirm_within_s = 0.001\n"
    )
    return path


def look(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sentinel", "watch", "--run", str(path), "--once"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


WELL = [3 + 4 * step**-0.5 + 0.01 * (step % 3) for step in range(1, 301)]
ILL = [*WELL[:150], *(loss + 3.5 for loss in WELL[150:])]


@pytest.mark.full
@pytest.mark.parametrize(("losses", "answer", "said"), [(WELL, 0, "is healthy"), (ILL, 1, "is diverged")])
def test_what_samples_say_is_the_verdict(tmp_path: Path, losses: list[float], answer: int, said: str) -> None:
    journal(tmp_path, losses, time.time())
    ran = look(configured(tmp_path, "elsewhere"))
    assert said in ran.stderr
    assert ran.returncode == answer, ran.stderr
    assert "process" not in ran.stderr
    assert not (tmp_path / "not-mounted").exists()


def test_a_job_that_is_expected_to_be_here_and_is_not_is_down(tmp_path: Path) -> None:
    """On the machine that the journal names; on another one its absence says nothing."""
    journal(tmp_path, WELL, time.time(), host=socket.gethostname())
    two_minutes_ago = time.time() - 120.0
    os.utime(tmp_path / "state" / "attempts" / "0001.jsonl", (two_minutes_ago, two_minutes_ago))
    assert "no process is left" in look(configured(tmp_path, "local")).stderr


@pytest.mark.full
def test_that_nobody_sees_the_job_is_no_trouble_to_page_for(tmp_path: Path) -> None:
    journal(tmp_path, WELL, time.time())
    path = configured(tmp_path, "elsewhere")
    for _ in range(2):
        look(path)
    told = [event["event"] for event in lines_of(tmp_path / "state" / "incidents.jsonl")]
    assert told == []


@pytest.mark.full
def test_a_run_that_falls_silent_is_not_called_healthy(tmp_path: Path) -> None:
    journal(tmp_path, WELL, time.time() - 36_000)
    path = configured(tmp_path, "elsewhere")
    for _ in range(2):
        assert "is blind at step 300: nothing has come from the run for 360" in look(path).stderr
    log = IncidentLog(tmp_path / "state" / "incidents.jsonl")
    assert log.read() == []  # a look that stands alone does not know since when
    with running(sys.executable, "-m", "sentinel", "watch", "--run", path, folder=tmp_path, name="watch"):
        until(log.read)
    assert log.read()[0].to_json()["severity"] == "warning"


def test_nothing_is_wrong_before_the_first_attempt(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    ran = look(configured(tmp_path, "elsewhere"))
    assert "is pending: no attempt has begun" in ran.stderr
    assert ran.returncode == 0


def test_a_rollback_typed_by_a_person_is_refused_and_says_why(tmp_path: Path) -> None:
    journal(tmp_path, ILL, time.time())
    path = configured(tmp_path, "elsewhere")
    deepspeed(tmp_path / "not-mounted", 100)
    words = ["rollback", "--run", str(path), "--to", "global_step100", "--dry-run", "--json"]
    command = [sys.executable, "-m", "sentinel", *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (
        json.loads(ran.stdout)["refusal"]
        == "[launcher] kind is 'elsewhere': sentinel watches the job and does not act on it"
    )
    assert ran.returncode == 1
