"""`sentinel bisect` as a person types it: killed, gone on with, and the run's own folders as they were, by digest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.bisect_causes import SMALL, digests, put_on_record
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.adapters.lock import RunLock
from sentinel.lab.bisect import causes as bisect
from sentinel.plan.incident.events import fold
from sentinel.vocabulary.sample import Sample
from tests.adapters.checkpoint_files import deepspeed
from tests.adapters.pagers import until
from tests.support.bisected_runs import NAN_FROM, ROOT, SAMPLES, TRAINER, configured


def begun(path: Path, **environment: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "sentinel", "bisect", "--run", str(path), "--json"]
    own = dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu", **environment)
    return subprocess.Popen(line, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights(folder: Path) -> dict[str, str]:
    """Digests of the run's checkpoints and journals; not of who acts on them, nor of who lives."""
    ours = ("state-folder.json", ".sentinel-heartbeats")
    found = {name: digest for name, digest in digests(folder).items() if "checkpoints" in name or "attempts" in name}
    return {name: digest for name, digest in found.items() if not any(own in name for own in ours)}


def steps(folder: Path) -> int:
    return sum(isinstance(record, Sample) for record in Journals(folder).poll())


def dry_run(path: Path) -> tuple[int, dict[str, Any]]:
    line = [sys.executable, "-m", "sentinel", "bisect", "--run", str(path), "--dry-run", "--json"]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    return ran.returncode, dict(json.loads(ran.stdout))


def refused_before_it_is_begun(folder: Path, command: list[str], path: Path) -> None:
    """What a dry run foretells; it writes nothing."""
    code, told = dry_run(path)
    assert (code, told["refusal"], told["refused"]) == (0, None, {})
    assert [p["name"] for p in told["planned"]][:3] == ["control", "control-again", "skip-suspects"]
    code, told = dry_run(configured(folder, [*command[:2], "state"]))  # names no checkpoints: they would be the run's
    assert code == 1
    assert "does not name the checkpoints folder" in told["refusal"]
    configured(folder, command)
    (folder / "state" / "bisect" / "incident-1").mkdir(parents=True)
    with RunLock(folder / "state" / "bisect" / "incident-1"):
        assert "another sentinel bisects incident-1" in dry_run(path)[1]["refusal"]
    shutil.rmtree(folder / "state" / "bisect")


def killed_and_gone_on_with(folder: Path, path: Path) -> dict[str, Any]:
    """Killed while a probe trains, which is followed on; suspended meanwhile, since it might end before it is seen."""
    probes = folder / "state" / "bisect" / "incident-1"
    first = begun(path, PACE="0.2")
    until(lambda: first.poll() is not None or steps(probes / "control") > 2)
    assert first.poll() is None, first.communicate()[1]
    first.kill()
    first.communicate()
    left = [psutil.Process(writer.pid) for writer in LocalJobs(probes / "control").writers()]
    assert left, "the probe trains on"
    for process in left:
        process.suspend()
    second = begun(path)
    assert second.stderr is not None
    said = iter(second.stderr.readline, "")
    assert any("control: started before; it continues" in line for line in said)
    for process in left:
        process.resume()
    out, _ = second.communicate(timeout=300)
    assert all(LocalJobs(place).writers() == () for place in probes.glob("*/"))
    return dict(json.loads(out))


@pytest.mark.full
def test_a_killed_bisect_goes_on_names_the_samples_and_leaves_the_runs_folders_as_they_were(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        deepspeed(tmp_path / "checkpoints", step)
    (tmp_path / "trainer.py").write_text(TRAINER)
    places = [str(tmp_path / "state"), str(tmp_path / "checkpoints")]
    command = [sys.executable, str(tmp_path / "trainer.py"), *places]
    subprocess.run(command, check=True, env=dict(os.environ, PACE="0"))
    (tmp_path / "checkpoints" / "latest").write_text("global_step30")
    assert put_on_record(tmp_path) is None
    path = configured(tmp_path, command)
    before = digests(tmp_path)
    refused_before_it_is_begun(tmp_path, command, path)
    told = killed_and_gone_on_with(tmp_path, path)
    assert digests(tmp_path) == before
    assert told["from"] == {"tag": "global_step20", "global_step": 20}
    assert [(p["name"], p["outcome"]) for p in told["probes"]][:3] == [
        ("control", "diverged"),
        ("skip-suspects", "calm"),
        ("skip-others", "diverged"),
    ]
    halved = [p["name"].split("-")[1:] for p in told["probes"][3:] if p["outcome"] == "calm"]
    at = SAMPLES * (NAN_FROM - 1)
    assert all(int(first) <= at <= int(last) for first, last in halved), halved
    assert int(halved[-1][1]) - int(halved[-1][0]) < 8 * SAMPLES
    assert told["probes"][0]["differs_at"] is None, "bit for bit"
    assert (told["ranked"][0]["cause"], told["ranked"][0]["sure"]) == (bisect.SAMPLES, "sure")
    again, _ = begun(path).communicate(timeout=60)
    assert json.loads(again)["probes"] == told["probes"], "nothing is run twice"
    page = tmp_path / "chronicle"
    line = [sys.executable, "-m", "sentinel", "chronicle", "--run", str(path), "--output", str(page)]
    subprocess.run(line, check=True, capture_output=True)
    assert "1. samples of the data (sure)" in (page / "chronicle.md").read_text()


@pytest.mark.full
def test_a_bisect_of_the_reference_trainer(tmp_path: Path) -> None:
    options = [*SMALL, "--no-block-layernorm", "--steps", "75", "--seed", "0"]
    places = ["--save", str(tmp_path / "checkpoints"), "--state-dir", str(tmp_path / "state")]
    trainer = [sys.executable, "-m", "benchmarks.causes.trainer", "nan sample", "45"]
    command = [*trainer, *options, *places]
    environment = dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    assert put_on_record(tmp_path) is None
    own = ["--save={checkpoints}", "--state-dir={state}", "--save-interval=0", "--steps={until_step}"]
    path = configured(tmp_path, command, bisect={"options": own})
    before = digests(tmp_path)
    told = killed_and_gone_on_with(tmp_path, path)
    assert digests(tmp_path) == before
    assert told["probes"][0]["differs_at"] is None, "bit for bit"
    assert (told["ranked"][0]["cause"], told["ranked"][0]["sure"]) == (bisect.SAMPLES, "sure")


def asks_for_the_cause(folder: Path) -> tuple[list[str], Path]:
    """The command of a run that diverges from step 45 on, and a configuration whose only rung is its bisect."""
    options = [*SMALL, "--no-block-layernorm", "--steps", "400", "--seed", "0"]
    places = ["--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state")]
    command = [sys.executable, "-m", "benchmarks.causes.trainer", "nan sample", "45", *options, *places]
    own = ["--save={checkpoints}", "--state-dir={state}", "--save-interval=0", "--steps={until_step}"]
    path = configured(folder, command, bisect={"options": own}, policy={"mode": "act"})
    with path.open("a") as written:
        written.write('[[policy.ladder]]\nname = "the cause"\nhypothesis = "its bisect finds it"\nbisect = true\n')
    return command, path


@pytest.mark.full
@pytest.mark.timeout(600)
def test_undo_stops_the_probes_of_a_rung_and_the_run_is_as_it_was(tmp_path: Path) -> None:
    command, path = asks_for_the_cause(tmp_path)
    environment = dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    log, probes = IncidentLog(tmp_path / "state" / "incidents.jsonl"), tmp_path / "state" / "bisect" / "incident-1"
    sentinel = [sys.executable, "-m", "sentinel"]
    quiet: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "text": True}
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **quiet),
        subprocess.Popen([*sentinel, "watch", "--run", str(path)], stderr=subprocess.DEVNULL, **quiet) as watch,
    ):
        until(lambda: watch.poll() is not None or bool(LocalJobs(probes / "control").writers()))
        watch.kill()
    before = weights(tmp_path)
    assert LocalJobs(probes / "control").writers(), "a killed watch stops no probe"
    subprocess.run([*sentinel, "undo", "--run", str(path), "--yes"], check=True, capture_output=True, **quiet)
    assert all(LocalJobs(place).writers() == () for place in probes.glob("*/"))
    (incident,) = fold(log.read())
    assert (incident.outcome, incident.rollbacks) == ("undone", [])
    assert weights(tmp_path) == before


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_watch_asks_for_the_cause_and_the_restart_makes_the_change_that_healed(tmp_path: Path) -> None:
    command, path = asks_for_the_cause(tmp_path)
    environment = dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    log, jobs = IncidentLog(tmp_path / "state" / "incidents.jsonl"), LocalJobs(tmp_path / "state")
    line, before = [sys.executable, "-m", "sentinel", "watch", "--run", str(path)], dict[str, str]()
    quiet: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "text": True}
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **quiet),
        subprocess.Popen(line, stderr=subprocess.PIPE, **quiet) as watch,
    ):
        try:
            end = time.monotonic() + 500
            while not {*(kinds := [e.kind for e in log.read()])} & {"closed", "rung_failed", "stopped"}:
                assert time.monotonic() < end, kinds
                assert watch.poll() is None, watch.stderr.read() if watch.stderr else ""
                if "done" in kinds and "bisect_ended" not in kinds:  # the job is stopped; its probes run
                    before = before or weights(tmp_path)
                    assert weights(tmp_path) == before, "nothing of the run moves before its cause is known"
                time.sleep(0.3)
        finally:
            watch.terminate()
            jobs.stop(grace_s=20)
    (incident,) = fold(log.read())
    assert before
    assert incident.outcome == "recovered", incident.note
    assert kinds.count("bisect_begun") == kinds.count("bisect_ended") == 1
    assert incident.bisect is not None
    assert str(incident.bisect.over).startswith("samples of the data (sure)")
    (rollback,) = incident.rollbacks
    assert (rollback.rung, rollback.target_tag, rollback.proved) == ("the cause", "global_step30", True)
    assert rollback.overrides.once is not None
    assert (rollback.overrides.once.skip_samples or 0) > 16 * 5
