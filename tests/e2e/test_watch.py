"""`watch`, `rollback` and `undo` as a person uses them, on a run that really diverged and that nobody watched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.adapters.lock import RunLock
from sentinel.plan.incident import fold
from sentinel.vocabulary.errors import LockHeld
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.hooks.trainer import command as small_trainer
from tests.hooks.trainer import losses, train

SENTINEL = [sys.executable, "-m", "sentinel"]


@pytest.fixture
def run(diverged: Path, tmp_path: Path) -> Path:
    """A copy of it, to do with as one likes; nothing in its configuration can start a job."""
    folder = tmp_path / "run"
    shutil.copytree(diverged, folder, symlinks=True)
    text = (folder / "demo.toml").read_text()
    begin, end = text.index("command = ["), text.index("]\nstop_grace_s") + 2
    (folder / "demo.toml").write_text(text[:begin] + 'command = ["false"]\n' + text[end:])
    return folder


def sentinel(folder: Path, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    verb, *rest = words
    line = [*SENTINEL, verb, "--run", str(folder / "demo.toml"), *rest]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    assert ran.returncode == expect, f"{words}: exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / "demo.toml").read_text()
    assert old in text
    (folder / "demo.toml").write_text(text.replace(old, new))


def inventory(folder: Path, *parts: str) -> dict[str, str]:
    """Digest of every file below the parts of the run that a rollback touches."""
    files = [p for part in parts or ("checkpoints", "tensorboard") for p in (folder / part).rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def live(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if ".sentinel-quarantine" not in name}


def test_in_mode_observe_all_is_said_and_nothing_is_done(run: Path) -> None:
    before = inventory(run)
    watched = sentinel(run, "watch", "--observe", expect=1)
    assert "mode is observe: would apply 'reseed' from global_step" in watched.stderr
    assert inventory(run) == before
    assert not (run / "state" / "overrides.json").exists()
    (incident,) = fold(IncidentLog(run / "state" / "incidents.jsonl").read())
    assert (incident.status, incident.shadows, incident.rollbacks) == ("open", 1, [])
    sentinel(run, "watch", "--observe", expect=1)  # a second watch tells the same story and adds nothing
    assert fold(IncidentLog(run / "state" / "incidents.jsonl").read())[0].shadows == 1


def test_status_tells_a_person_and_a_script_that_it_diverged(run: Path) -> None:
    assert "demo: diverged at step 240" in sentinel(run, "status", expect=1).stdout
    answer = json.loads(sentinel(run, "status", "--json", expect=1).stdout)
    assert (answer["run"], answer["mode"], answer["verdict"], answer["attempt"]) == ("demo", "act", "diverged", 1)
    assert answer["global_step"] == 240
    assert answer["budget"] == {"rollbacks_left": 5, "lost_steps_left": 100_000}
    assert answer["onset_range"][0] < answer["global_step"]
    assert not (run / "state" / "incidents.jsonl").exists()  # asking is no deed


@pytest.mark.parametrize(
    ("name", "says"), [("PAUSED", "the run is paused"), ("KILL", "the KILL file is in the state folder")]
)
def test_a_run_that_is_paused_is_watched_and_not_touched(run: Path, name: str, says: str) -> None:
    before = inventory(run)
    (run / "state" / name).touch()
    sentinel(run, "watch", "--once", expect=1)  # opens the incident
    assert says in sentinel(run, "watch", "--once", expect=1).stderr
    assert inventory(run) == before


def test_a_spent_budget_asks_for_a_person_and_goes_on_asking(run: Path) -> None:
    before = inventory(run)
    edit(run, "rollback_budget = 5", "rollback_budget = 0")
    assert "rollback budget of 0 is spent. A person is needed" in sentinel(run, "watch", expect=4).stderr
    assert "waits for a person" in sentinel(run, "watch", expect=4).stderr
    assert inventory(run) == before


def test_a_job_that_never_reports_its_start_is_not_started_for_ever(run: Path) -> None:
    edit(run, "poll_interval_s = 0.4", "poll_interval_s = 0.01")
    watched = sentinel(run, "watch", expect=4)
    assert "the job was started 3 times for incident-1-r1 and never reported a start" in watched.stderr
    intents = [e for e in IncidentLog(run / "state" / "incidents.jsonl").read() if e["event"] == "intent"]
    assert [e["action"]["kind"] for e in intents].count("start_job") == 3


def test_a_target_that_is_torn_is_passed_over_for_an_earlier_one(run: Path) -> None:
    sentinel(run, "watch", "--observe", expect=1)
    told = _shadow(run)
    shard = next((run / "checkpoints" / told["target"]["tag"]).glob("*.pt"))
    shard.write_bytes(shard.read_bytes()[:-4096])
    (run / "state" / "incidents.jsonl").rename(run / "state" / "incidents.before")
    sentinel(run, "watch", "--observe", expect=1)
    again = _shadow(run)
    assert again["target"]["global_step"] == told["target"]["global_step"] - 10


def _shadow(run: Path) -> dict[str, Any]:
    (shadow,) = [e for e in IncidentLog(run / "state" / "incidents.jsonl").read() if e["event"] == "shadow"]
    return dict(shadow)


def test_a_dry_run_tells_the_plan_and_touches_nothing(run: Path) -> None:
    before = inventory(run)
    plan = json.loads(sentinel(run, "rollback", "--to", "global_step20", "--dry-run", "--json").stdout)
    assert (plan["incident"], plan["target"]) == ("incident-1", {"tag": "global_step20", "global_step": 20})
    assert plan["refusal"] is None
    kinds = [action["kind"] for action in plan["actions"]]
    assert kinds == ["quarantine_checkpoints", "point_latest", "cut_tensorboard", "write_overrides", "start_job"]
    assert len(plan["actions"][0]["tags"]) == 22
    shown = sentinel(run, "rollback", "--to", "global_step20", "--dry-run").stdout
    assert "220 steps are lost; nothing is deleted" in shown
    assert inventory(run) == before
    assert not (run / "state" / "incidents.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "global_step200"), "is after the onset at step"),
        (("--to", "global_step7"), "there is no checkpoint 'global_step7'; the last ones are global_step200,"),
        (("--to", "global_step20", "--rung", "prayer"), "the ladder has no rung 'prayer'; it has reseed,"),
    ],
)
def test_what_is_refused_is_refused_with_the_reason(run: Path, words: tuple[str, ...], says: str) -> None:
    before = inventory(run)
    assert says in sentinel(run, "rollback", *words, "--yes", expect=1).stdout
    assert says in json.loads(sentinel(run, "rollback", *words, "--dry-run", "--json", expect=1).stdout)["refusal"]
    assert inventory(run) == before


def test_nobody_there_to_be_asked_is_a_no(run: Path) -> None:
    before = inventory(run)
    assert "say --yes" in sentinel(run, "rollback", "--to", "global_step20", expect=1).stderr
    assert inventory(run) == before


@pytest.mark.parametrize("to", ["global_step20", "scratch", "global_step200"])
def test_a_rollback_by_hand_and_its_undo_give_everything_back(run: Path, to: str) -> None:
    before = inventory(run)
    words = ("--to", to, "--no-start", "--yes", "--force", "--seed", "7")
    sentinel(run, "rollback", *words)
    latest = run / "checkpoints" / "latest"
    assert (latest.read_text() if latest.exists() else "scratch") == to
    overrides = json.loads((run / "state" / "overrides.json").read_text())
    assert overrides["once"]["seed"] == 7
    kept = inventory(run)
    assert sorted(d for n, d in before.items() if n.endswith(".pt")) == sorted(
        d for n, d in kept.items() if n.endswith(".pt")
    )
    sentinel(run, "undo", "--yes")
    assert live(inventory(run)) == before
    assert not (run / "state" / "overrides.json").exists()
    assert "no rollback to undo" in sentinel(run, "undo", "--yes", expect=2).stderr


def test_two_sentinels_do_not_work_on_one_run(run: Path) -> None:
    before = inventory(run)
    with RunLock(run / "state"):
        assert "another sentinel watches this run" in sentinel(run, "watch", expect=3).stderr
        sentinel(run, "rollback", "--to", "global_step20", "--yes", expect=3)
        with pytest.raises(LockHeld), RunLock(run / "state"):
            pass
    assert inventory(run) == before


def test_an_incident_log_that_makes_no_sense_is_not_guessed_at(run: Path) -> None:
    (run / "state" / "incidents.jsonl").write_text('{"event": "decided", "incident": "incident-3"}\n{"event": "x"}\n')
    ran = sentinel(run, "watch", expect=4)
    assert "event 1 of the incident log makes no sense" in ran.stderr
    assert "Traceback" not in ran.stderr


def _until(true: Callable[[], Any], *, within_s: float) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_crash_costs_the_steps_since_the_last_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    """Killed in the middle, started again by watch: the same losses as a run that nobody touched, bit for bit."""
    words = ("--steps", "60", "--save-interval", "10", "--run", "small")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, *words)
    broken.mkdir()
    (broken / "demo.toml").write_text(
        '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        f"[launcher]\ncommand = {json.dumps(small_trainer(broken, *words))}\nworking_directory = '.'\n"
        "[watch]\npoll_interval_s = 0.2\n[policy]\nmode = 'act'\nrestart_on_crash = true\n"
    )
    state = broken / "state"
    state.mkdir()
    jobs = LocalJobs(state)
    one_thread = {"OMP_NUM_THREADS": "1"}
    jobs.start(small_trainer(broken, *words), cwd=broken, extra_env=one_thread, log_path=state / "job.log")
    _until(lambda: 25 in losses(broken), within_s=60)
    for writer in jobs.writers():
        psutil.Process(writer.pid).send_signal(signal.SIGKILL)
    jobs.stop(grace_s=1)
    env = dict(os.environ, **one_thread)
    line = [*SENTINEL, "watch", "--run", str(broken / "demo.toml")]
    watched = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert watched.returncode == 0, watched.stderr
    records = Journals(state).poll()
    second = [r for r in records if isinstance(r, RunStarted)][1]
    assert second.resumed_from is not None
    assert second.resumed_from >= 20
    assert losses(broken) == losses(whole)
    assert len({r.attempt for r in records if isinstance(r, Sample)}) == 2
    assert not fold(IncidentLog(state / "incidents.jsonl").read())  # a crash is not a divergence
