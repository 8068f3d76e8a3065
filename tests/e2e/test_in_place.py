"""A real process that parks by the protocol, without torch, under the real commands: rolled back and resumed in place,
and what follows where it does not park, dies, or is not still."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sentinel.act.observe import Observer
from sentinel.adapters.parking import RequestFiles
from sentinel.config import load_config
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.plan.restart.liveness import settles
from sentinel.vocabulary.errors import JobStillAlive
from sentinel.vocabulary.parking import ParkRequest
from tests.adapters.boards import read, scalar, write_file
from tests.adapters.pagers import until
from tests.e2e.live_trainer import build, configure, events, files, sentinel

PROGRAM = Path(__file__).parents[1] / "support" / "parking_trainer.py"
SHORT = "park_within_s = 4\nconfirm_within_s = 20"


@pytest.fixture
def run() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sentinel-park-", ignore_cleanup_errors=True) as name:
        folder = build(Path(name).resolve())
        yield folder
        (folder / "end").touch()
        until(lambda: not alive(folder))


def configured(folder: Path, *, policy: str = SHORT) -> None:
    command = json.dumps([sys.executable, str(PROGRAM), str(folder)])
    configure(folder, f"command = {command}", judge="quiet_s = 1", policy=policy)


@contextmanager
def training(folder: Path, does: str = "obeys") -> Iterator[subprocess.Popen[bytes]]:
    """The trainer, started by a person, once it has saved anew."""
    line = [sys.executable, str(PROGRAM), str(folder), does]
    with (folder / "state" / "job.log").open("ab") as log, subprocess.Popen(line, stdout=log, stderr=log) as process:
        try:
            until((folder / "checkpoints" / "global_step40").exists)
            yield process
        finally:
            process.kill()


def records(folder: Path, attempt: int) -> list[dict[str, Any]]:
    """The whole lines of its journal."""
    journal = folder / "state" / "attempts" / f"{attempt:04d}.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def started(folder: Path, attempt: int) -> dict[str, Any]:
    return next((one for one in records(folder, attempt) if one["kind"] == "run_started"), {})


def alive(folder: Path) -> list[int]:
    """The processes of this run's trainer."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += [int(entry.name)] if str(PROGRAM).encode() in words and str(folder).encode() in words else []
    return found


def done(folder: Path) -> list[str]:
    """The kinds of the actions that were done, in their order."""
    return [e["action"]["kind"] for e in events(folder) if e["event"] == "done"]


def rolled_back(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return sentinel(folder, "rollback", "--to", "global_step10", "--yes", *words)


def test_a_rollback_by_hand_moves_the_files_and_resumes_the_same_process(run: Path) -> None:
    configured(run)
    with training(run) as process:
        shown = json.loads(sentinel(run, "rollback", "--to", "global_step10", "--dry-run", "--json").stdout)
        assert shown["restart"] == {
            "way": "in_place",
            "why": "in the same processes: attempt 1 has declared that it can park",
        }
        there = files(run)
        ran = rolled_back(run)
        assert ran.returncode == 0, ran.stderr
        until(lambda: started(run, 2))
        assert process.poll() is None
        begun = started(run, 2)
        assert (begun["pid"], begun["rollback"], begun["resumed_from"]) == (process.pid, "incident-1-r1", 10)
        assert records(run, 1)[-2]["kind"] == "parked"
        assert records(run, 1)[-1]["reason"] == "resumed in place for incident-1-r1"
        assert [kind for kind in done(run) if kind != "verify_checkpoint"] == [
            "park",
            "quarantine_checkpoints",
            "point_latest",
            "write_overrides",
            "resume",
        ]
        moved = {
            str(p.relative_to(run)) for p in (run / "checkpoints" / ".sentinel-quarantine").rglob("global_step*/*")
        }
        kept = {Path(name).parts[-2:] for name in files(run) | moved}
        assert {Path(name).parts[-2:] for name in there} <= kept
        assert json.loads((run / "state" / "PARK").read_text())["rollback"] == "incident-1-r1"
        watched = sentinel(run, "watch", over=lambda: not (run / "state" / "PARK").exists(), within_s=60)
        assert not any((run / "state" / name).exists() for name in ("PARK", "RESUME", "RELEASE")), watched.stderr
        assert process.poll() is None


@pytest.mark.full
def test_event_files_that_the_parked_process_has_closed_are_cut(run: Path) -> None:
    """The process lives, and its number is in their names."""
    configured(run)
    config = run / "live.toml"
    config.write_text(config.read_text().replace("[run]", '[run]\ntensorboard = "tb"', 1))
    with training(run) as process:
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{process.pid}.0"
        write_file(run / "tb" / name, (scalar("loss", step, 1.0) for step in range(1, 41)))
        ran = rolled_back(run)
        assert ran.returncode == 0, ran.stderr
        assert process.poll() is None
        assert read(run / "tb") == {"loss": [*range(1, 11)]}, ran.stderr


def kept(run: Path) -> str:
    """The newest state in memory, by `sentinel checkpoints`."""
    until(lambda: len({one["global_step"] for one in records(run, 1) if one["kind"] == "memory_target"}) >= 3)
    shown = json.loads(sentinel(run, "checkpoints", "--json").stdout)
    return str([one["tag"] for one in shown if one["in_memory"] and one["certified"]][-1])


@pytest.mark.full
def test_a_rollback_to_a_state_in_memory_resumes_from_it_and_latest_names_the_checkpoint_before_it(run: Path) -> None:
    configured(run)
    with training(run) as process:
        tag = kept(run)
        step = int(tag.removeprefix("memory:"))
        later = [run / name for name in files(run) if f"global_step{step + 10}/" in name]
        inodes = [path.stat().st_ino for path in later]  # a rename keeps them; the next attempt saves that step anew
        ran = sentinel(run, "rollback", "--to", tag, "--yes")
        assert ran.returncode == 0, ran.stderr
        assert f"where {tag} is lost with its process: from global_step{step - 10}, by a new job" in ran.stdout
        until(lambda: started(run, 2))
        begun = started(run, 2)
        assert (begun["pid"], begun["resumed_from"], begun["in_place"]) == (process.pid, step, True)
        assert process.poll() is None
        (intent,) = (e for e in events(run) if e["event"] == "intent" and e["action"]["kind"] == "point_latest")
        assert intent["action"]["tag"] == f"global_step{step - 10}"
        shown = json.loads((run / "state" / "RESUME").read_text())
        assert (shown["target"], shown["global_step"]) == (tag, step)
        refused = sentinel(run, "rollback", "--to", "memory:7", "--yes")
        assert refused.returncode == 1
        assert "there is no state memory:7 in memory" in refused.stdout
        undone = sentinel(run, "undo", "incident-1", "--yes")
        assert undone.returncode == 0, undone.stderr
        assert process.poll() is not None
        assert [path.stat().st_ino for path in later] == inodes != []


@pytest.mark.full
@pytest.mark.parametrize("does", ["dies", "deaf"])
def test_where_the_state_in_memory_is_lost_with_its_process_the_checkpoint_before_it_is_the_target(
    run: Path, does: str
) -> None:
    configured(run, policy="park_within_s = 4\nconfirm_within_s = 6")
    with training(run, does) as process:
        tag = kept(run)
        before = int(tag.removeprefix("memory:")) - 10
        ran = sentinel(run, "rollback", "--to", tag, "--yes")
        assert ran.returncode == 0, ran.stderr
        sentinel(run, "watch", over=lambda: alive(run) not in ([], [process.pid]) and started(run, 2), within_s=60)
        until(lambda: started(run, 2))
        (given_up,) = (e for e in events(run) if e["event"] == "in_place_given_up")
        lost = f"{tag} is lost with it: the target is global_step{before}"
        assert given_up["reason"].endswith(lost)
        begun = started(run, 2)
        assert (begun["rollback"], begun["resumed_from"]) == ("incident-1-r1", before)
        overrides = json.loads((run / "state" / "overrides.json").read_text())
        assert overrides["anchor"]["global_step"] == before
        shown = json.loads(sentinel(run, "incident", "incident-1", "--json").stdout)
        assert lost in json.dumps(shown)


@pytest.mark.full
def test_a_persons_word_is_a_new_job(run: Path) -> None:
    configured(run)
    with training(run) as process:
        ran = rolled_back(run, "--restart", "job")
        assert ran.returncode == 0, ran.stderr
        assert process.wait(20) != 0
        until(lambda: started(run, 2))
        assert started(run, 2)["pid"] != process.pid
        assert not {"park", "resume"} & {*done(run)}


@pytest.mark.full
@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("deaf", "attempt 1 is not parked within 4 s: "),
        ("dies", "the trainer of attempt 1 is gone: "),
        ("vanishes", "the trainer of attempt 1 is gone: "),
        pytest.param("ignores", "and has not taken RESUME within ", marks=pytest.mark.soak),  # a minute
        ("full", "is not parked within 4 s: the newest record of the newest attempt is not `parked`"),
        ("hangs", "and has not reported its start"),
    ],
)
def test_a_trainer_that_does_not_do_its_part_is_started_by_a_new_job_as_the_same_rollback(
    run: Path, does: str, why: str
) -> None:
    configured(run, policy="park_within_s = 4\nconfirm_within_s = 6")
    with training(run, does) as process:
        ran = rolled_back(run)
        assert ran.returncode == 0, ran.stderr
        sentinel(run, "watch", over=lambda: alive(run) not in ([], [process.pid]) and started(run, 2), within_s=60)
        until(lambda: process.poll() is not None)
        until(lambda: started(run, 2))
        (given_up,) = (e for e in events(run) if e["event"] == "in_place_given_up")
        assert why in given_up["reason"]
        assert given_up["rollback"] == started(run, 2)["rollback"] == "incident-1-r1"
        assert started(run, 2)["resumed_from"] == 10
        assert "start_job" in done(run)


def asked_to_park(run: Path) -> Observer:
    """The observer of a run whose trainer has reported to be parked."""
    request = ParkRequest(rollback="incident-1-r1", attempt=1, deadline_unix_s=time.time() + 600)
    RequestFiles(run / "state").write(request)
    until(lambda: records(run, 1)[-1]["kind"] == "parked")
    config = load_config(run / "live.toml")
    observer = observer_of(config, neighbours_of(config))
    observer.look(time.time())
    return observer


def test_the_fence_lets_a_parked_trainer_be_and_no_other(run: Path) -> None:
    configured(run)
    with training(run):
        observer = asked_to_park(run)
        until(lambda: settles(observer.fence.witnesses(), except_for="incident-1-r1") is None)
        observer.fence.check("incident-1-r1", or_parked=True)
        for rollback, or_parked in (("incident-1-r1", False), ("incident-1-r2", True), (None, False)):
            with pytest.raises(JobStillAlive):
                observer.fence.check(rollback, or_parked=or_parked)
        with training(run):  # a second one, that a person has started meanwhile
            until(lambda: len(records(run, 2)) > 1)
            with pytest.raises(JobStillAlive):
                observer.fence.check("incident-1-r1", or_parked=True)


def test_a_trainer_that_goes_on_writing_its_log_is_not_parked(run: Path) -> None:
    configured(run)
    with training(run, "restless"):
        observer = asked_to_park(run)
        until(lambda: "job.log was written" in (observer.fence.not_parked("incident-1-r1") or ""))
        with pytest.raises(JobStillAlive):
            observer.fence.check("incident-1-r1", or_parked=True)


def test_a_record_after_the_one_that_said_parked_is_seen_on_the_disk_at_once(run: Path) -> None:
    configured(run)
    with training(run) as process:
        observer = asked_to_park(run)
        assert observer.fence.not_parked("incident-1-r1") is None
        process.send_signal(signal.SIGSTOP)  # it will say nothing more
        with (run / "state" / "attempts" / "0001.jsonl").open("a") as journal:
            journal.write('{"kind": "sample", ')  # begun, and not ended: no reader has taken it
        assert observer.fence.not_parked("incident-1-r1") == "the newest record of the newest attempt is not `parked`"


def killed_after(run: Path, what: str) -> None:
    """Types the rollback, and kills the command as soon as the incident log has those words."""
    line = [
        sys.executable,
        "-m",
        "sentinel",
        "rollback",
        "--run",
        str(run / "live.toml"),
        "--to",
        "global_step10",
        "--yes",
    ]
    log = run / "state" / "incidents.jsonl"
    with subprocess.Popen(
        [*line, "--yes"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as ran:
        end = time.monotonic() + 120
        while not (log.exists() and what in log.read_text()):
            assert time.monotonic() < end
            assert ran.poll() is None
            time.sleep(0.001)  # the command needs the processor too
        ran.kill()


CUTS = ["park", "quarantine_checkpoints", "point_latest", "write_overrides", "resume"]


@pytest.mark.full
@pytest.mark.parametrize("kind", CUTS)
def test_a_watch_goes_on_where_a_command_was_killed_and_the_trainer_waits_for_it(run: Path, kind: str) -> None:
    configured(run, policy="")
    with training(run) as process:
        killed_after(run, f'"action": {{"kind": "{kind}"')
        sentinel(run, "watch", over=lambda: started(run, 2), within_s=60)
        assert process.poll() is None
        assert started(run, 2)["rollback"] == "incident-1-r1"
        assert "start_job" not in done(run)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["quarantine_checkpoints", "write_overrides"])
def test_a_trainer_that_is_killed_while_it_is_parked_is_started_by_a_new_job(run: Path, kind: str) -> None:
    configured(run, policy="")
    with training(run) as process:
        killed_after(run, f'"action": {{"kind": "{kind}"')
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        sentinel(run, "watch", over=lambda: started(run, 2), within_s=60)
        assert started(run, 2)["rollback"] == "incident-1-r1"
        assert started(run, 2)["resumed_from"] == 10
        given_up = [e["reason"] for e in events(run) if e["event"] == "in_place_given_up"]
        assert given_up == [f"the trainer of attempt 1 is gone: {given_up[0].partition(': ')[2]}"]


@pytest.mark.full
def test_a_pause_lets_a_parked_trainer_train_on_where_nothing_has_moved(run: Path) -> None:
    configured(run, policy="")
    with training(run) as process:
        killed_after(
            run, '"event": "done", "incident": "incident-1", "rollback": "incident-1-r1", "action": {"kind": "park"'
        )
        assert sentinel(run, "pause").returncode == 0
        sentinel(run, "watch", over=lambda: "released" in {r["kind"] for r in records(run, 1)}, within_s=60)
        steps = len(records(run, 1))
        until(lambda: len(records(run, 1)) > steps + 10)
        assert process.poll() is None
        assert done(run)[-1] == "release"


@pytest.mark.full
def test_kill_while_it_is_parked_ends_the_trainer_and_nothing_is_started_before_it_is_taken_away(run: Path) -> None:
    configured(run, policy="")
    with training(run) as process:
        killed_after(run, '"action": {"kind": "quarantine_checkpoints"')
        (run / "state" / "KILL").touch()
        assert process.wait(20) == 0
        assert records(run, 1)[-1]["reason"] == "kill_file"
        said = sentinel(run, "watch", over=(run / "state" / "overrides.json").exists).stderr
        assert "the KILL file is in the state folder: a job would stop after its first step; take it away first" in said
        assert not started(run, 2)
        (run / "state" / "KILL").unlink()
        sentinel(run, "watch", over=lambda: started(run, 2))
        assert (started(run, 2)["rollback"], started(run, 2)["resumed_from"]) == ("incident-1-r1", 10)
