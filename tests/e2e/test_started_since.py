"""A rollback or an undo that was killed half-way, a job that a person starts then, and the next watch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.pagers import until
from tests.e2e.live_trainer import NAMES, build, configure, events, files, local, sentinel, training

pytestmark = pytest.mark.full


@pytest.fixture
def run() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sentinel-since-", ignore_cleanup_errors=True) as folder:
        yield build(Path(folder).resolve())


def killed_after(run: Path, what: str, *words: str) -> None:
    """Types the command, and kills it as soon as the incident log has those words; it has not come to its end then."""
    line = [sys.executable, "-m", "sentinel", words[0], "--run", str(run / "live.toml"), *words[1:]]
    log = run / "state" / "incidents.jsonl"
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ran:
        end = time.monotonic() + 60
        while not (log.exists() and what in log.read_text()):
            assert time.monotonic() < end
            assert ran.poll() is None
        ran.kill()
    assert events(run)[-1]["event"] not in ("applied", "closed")


def trained_steps(run: Path, attempt: int) -> int:
    journal = run / "state" / "attempts" / f"{attempt:04d}.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sum(json.loads(line)["kind"] == "sample" for line in lines if line.endswith("}"))


@pytest.mark.parametrize("mode", ["act", "approve"])
@pytest.mark.parametrize("seen", ["its process is known", "it names no process"])
def test_a_job_that_a_person_starts_after_a_killed_rollback_goes_on(run: Path, mode: str, seen: str) -> None:
    configure(run, local(run), mode=mode)
    with training(run):
        killed_after(run, '"action": {"kind": "stop_job"', "rollback", "--to", "global_step10", "--yes")
    (run / "end").unlink()
    names = NAMES if seen == "its process is known" else ("job_id",)
    with training(run, names) as by_hand:
        until(lambda: trained_steps(run, 2) > 3)
        there, steps = files(run), trained_steps(run, 2)
        ran = sentinel(run, "watch", within_s=60 if seen == "its process is known" else 15)
        assert by_hand.poll() is None, ran.stderr
        assert there <= files(run)
        until(lambda: trained_steps(run, 2) > steps + 20)
    if seen == "its process is known":
        assert ran.returncode == 4, ran.stderr
        assert "began after incident-1-r1 was decided, and was not started for it" in ran.stderr
        assert [e["event"] for e in events(run)][-1] == "stopped"


@pytest.mark.parametrize("mode", ["act", "approve"])
def test_a_job_that_a_person_starts_after_a_killed_undo_goes_on(run: Path, mode: str) -> None:
    configure(run, local(run), mode=mode)
    with training(run):
        assert sentinel(run, "rollback", "--to", "global_step10", "--yes", "--no-start").returncode == 0
    (run / "end").unlink()
    with training(run):
        before = len(events(run))
        killed_after(run, '"kind": "undo"', "undo", "--yes")
        assert len(events(run)) == before + 1
    (run / "end").unlink()
    with training(run) as by_hand:
        until(lambda: trained_steps(run, 3) > 3)
        there = files(run)
        ran = sentinel(run, "watch", within_s=15)
        assert by_hand.poll() is None, ran.stderr
        assert there <= files(run)
    if mode == "act":
        assert "the undo of incident-1 is not completed: " in ran.stderr
        assert ran.returncode == 4


def test_a_paused_rollback_ends_with_files_that_a_job_starts_from(run: Path) -> None:
    configure(run, local(run))
    with training(run):
        pass
    (run / "end").unlink()
    killed_after(run, '"kind": "quarantine_checkpoints"', "rollback", "--to", "global_step10", "--yes")
    assert sentinel(run, "pause").returncode == 0
    ran = sentinel(
        run, "watch", over=lambda: (run / "checkpoints" / "latest").read_text() == "global_step10", within_s=20
    )
    assert "the run is paused" in ran.stderr
    assert (run / "checkpoints" / "latest").read_text() == "global_step10"
    assert (run / "checkpoints" / "global_step10").is_dir()
    assert not [e for e in events(run) if e["event"] == "intent" and e["action"]["kind"] == "start_job"]
