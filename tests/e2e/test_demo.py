"""The main job on real training: it diverges by itself, and ends well, whoever is killed on the way."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.act.kept_turns import KeptTurns
from sentinel.adapters.checkpoints import QUARANTINE
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.cli.demo import summary
from sentinel.config import load_config
from sentinel.demo import story
from sentinel.demo.configuration import WITHOUT_LAYERNORMS, trainer_command, write_configuration
from sentinel.demo.story import tell
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.log_events import Decided
from sentinel.plan.review.kept_turn import KeptTurn, told
from sentinel.plan.turn import decide
from sentinel.vocabulary.errors import PermanentError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample
from tests.adapters.pagers import until
from tests.e2e.kill_points import copy_run

pytestmark = pytest.mark.full

SECRETS = {"HF_TOKEN": "hf_0123456789abcdefghij", "WANDB_API_KEY": "0f" * 20, "DB_URL": "postgres://joe:hunter2@db/x"}
SENTINEL = [sys.executable, "-m", "sentinel"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("demo")
    command = [*SENTINEL, "demo", "--seed", "0", "--output", str(folder), "--json"]
    told = {**os.environ, **SECRETS}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False, env=told)
    assert ran.returncode == 0, ran.stderr
    (folder / "told.txt").write_text(ran.stderr)
    return json.loads(ran.stdout), folder


@pytest.mark.timeout(600)
def test_a_run_that_really_diverges_is_saved(demo: tuple[dict[str, Any], Path]) -> None:
    report, _ = demo
    first, *_, last = report["attempts"]
    assert report["recovered"]
    assert (report["seed"], report["calm_seeds"]) == (0, [])
    assert first["verdict"] == "diverged"
    assert first["steps_loss_ratio_gt_1_2"] > 10
    assert last["verdict"] == "recovered"
    assert last["steps_loss_ratio_gt_1_2"] < first["steps_loss_ratio_gt_1_2"]
    assert last["last_step"] == 700
    assert report["final_validation_loss"] < 0.9 * first["validation_loss"]


def test_the_judge_has_its_default_patience(demo: tuple[dict[str, Any], Path]) -> None:
    configured = load_config(demo[1] / "demo.toml")
    assert configured.judge == Thresholds()
    for attempt in demo[0]["attempts"]:
        if attempt["alarm_step"] is not None:
            assert attempt["alarm_step"] - attempt["onset_step"] <= Thresholds().patience_steps


def test_a_seed_that_does_not_diverge_is_moved_aside_and_the_next_one_trained_three_at_most(tmp_path: Path) -> None:
    """Two steps can't diverge, so that this costs three starts of trainer and watch, and no training."""
    said: list[str] = []
    report = tell(4, tmp_path, said.append, replace(WITHOUT_LAYERNORMS, steps=2))
    assert (report.seed, report.calm_seeds, report.diverged, report.recovered) == (6, (4, 5, 6), False, False)
    assert [line for line in said if "did not diverge" in line] == [
        f"! seed {seed} did not diverge on this machine; its run is now in "
        f"{tmp_path / f'seed-{seed}-did-not-diverge'}; next: seed {seed + 1}"
        for seed in (4, 5)
    ]
    for folder in (tmp_path / "seed-4-did-not-diverge", tmp_path / "seed-5-did-not-diverge", tmp_path):
        assert [r.global_step for r in Journals(folder / "state").poll() if isinstance(r, Sample)] == [1, 2]
    assert "any of the seeds 4, 5, 6" in summary(report)
    assert report.to_json()["calm_seeds"] == [4, 5, 6]


def test_a_watch_that_ends_in_an_error_is_said_and_no_seed_counts_as_calm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misspelt(folder: Path, *how: Any) -> Path:
        path = write_configuration(folder, *how)
        path.write_text(path.read_text().replace("poll_interval_s", "pol_interval_s"))
        return path

    monkeypatch.setattr(story, "write_configuration", misspelt)
    with pytest.raises(PermanentError, match=r"`sentinel watch` ended with exit code 2: .*pol_interval_s"):
        tell(0, tmp_path, lambda _: None, replace(WITHOUT_LAYERNORMS, steps=2))
    assert not (tmp_path / "seed-0-did-not-diverge").exists()


def test_every_restart_was_proved_by_the_trainers_own_report(demo: tuple[dict[str, Any], Path]) -> None:
    (incident,) = fold(IncidentLog(demo[1] / "state" / "incidents.jsonl").read())
    started = {r.rollback: r for r in Journals(demo[1] / "state").poll() if isinstance(r, RunStarted)}
    assert incident.outcome == "recovered"
    for rollback in incident.rollbacks:
        assert rollback.proved
        assert (started[rollback.id].resumed_from or 0) == rollback.target_step


def test_each_restart_was_in_place_and_its_seconds_are_said(demo: tuple[dict[str, Any], Path]) -> None:
    report, folder = demo
    (incident,) = fold(IncidentLog(folder / "state" / "incidents.jsonl").read())
    assert [one["rollback"] for one in report["restarts"]] == [rollback.id for rollback in incident.rollbacks]
    told = (folder / "told.txt").read_text()
    for one in report["restarts"]:
        assert one["in_place"]
        seconds = f"{one['first_step_s']:.1f} s from the decision to the first new step"
        assert f"{one['rollback']} was resumed in place: {seconds}" in told
    starts = [r for r in Journals(folder / "state").poll() if isinstance(r, RunStarted)]
    assert len({start.pid for start in starts}) == 1


def test_no_checkpoint_was_lost(demo: tuple[dict[str, Any], Path]) -> None:
    saved = [r.tag for r in Journals(demo[1] / "state").poll() if type(r).__name__ == "CheckpointSaved"]
    folder = demo[1] / "checkpoints"
    here = [p.name for p in folder.glob("global_step*")]
    away = [p.name for p in (folder / QUARANTINE).glob("*/*/global_step*")]
    assert sorted(saved) == sorted(here + away)


def test_the_other_commands_tell_the_same_story(demo: tuple[dict[str, Any], Path]) -> None:
    _, folder = demo

    def asked(*words: str) -> Any:
        ran = subprocess.run([*SENTINEL, *words, "--json"], capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    run = ("--run", str(folder / "demo.toml"))
    status = asked("status", *run)
    assert (status["verdict"], status["global_step"], status["mode"]) == ("finished", 700, "act")
    assert [i["outcome"] for i in asked("incidents", *run)] == ["recovered"]
    rows = asked("correlate", *run)
    assert [row["signal"] for row in rows][:2] == ["adam_variance_l1", "adam_variance_max"]
    assert {row["method"] for row in rows} == {"plain", "prewhitened"}
    assert all(-1 <= row["pearson_r"] <= 1 and row["n_effective"] <= row["n"] for row in rows)


def test_every_turn_can_be_decided_again_and_explained_on_another_machine(
    demo: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    _, folder = demo
    log, turns = tuple(IncidentLog(folder / "state" / "incidents.jsonl").read()), KeptTurns(folder / "state" / "turns")
    kept = [KeptTurn.from_json(turns.read(path), log) for _, path in turns.numbers()]
    assert len(kept) > 5
    for one in kept:
        assert dump_json(told(decide(one.facts, one.policy, one.memory))) == dump_json(one.decided)

    def asked(*words: str) -> str:
        command = [*SENTINEL, *words]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "decides otherwise" not in ran.stderr
        return ran.stdout

    config, bundle = str(next(folder.glob("*.toml"))), str(tmp_path / "incident-1.gz")
    assert f"{bundle}: incident-1 with" in asked("incident", "incident-1", "--bundle", bundle, "--run", config)
    texts = [path.read_bytes() for path in (Path(bundle), *(folder / "state" / "turns").iterdir())]
    assert not [s for s in SECRETS.values() if any(s.encode() in gzip.decompress(text) for text in texts)]
    explained = json.loads(asked("explain", bundle, "--json"))
    (decided,) = [e for e in explained["decided"]["records"] if e["event"] == "decided"]
    assert decided["rollback"] in [e.rollback for e in log if isinstance(e, Decided)]
    observed = [c["comes_to"] for c in explained["would_change"] if 'mode = "observe"' in c["with"]]
    assert [text.startswith("records: shadow") for text in observed] == [True]
    other = tmp_path / "other.toml"
    other.write_text(Path(config).read_text().replace('mode = "act"', 'mode = "approve"'))
    assert "records: proposed" in asked("explain", bundle, "--policy", str(other))


def test_undo_brings_the_diverged_run_back_byte_for_byte(demo: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """The first attempt's checkpoints are live again. On a copy: the other tests look at what the demo has left."""
    folder = copy_run(demo[1], tmp_path / "demo")
    checkpoints = folder / "checkpoints"
    (incident,) = fold(IncidentLog(folder / "state" / "incidents.jsonl").read())
    first = checkpoints / QUARANTINE / incident.id / incident.rollbacks[0].id
    expected = {p.name: _digests(p) for p in first.glob("global_step*")}
    everything = {
        hashlib.sha256(p.read_bytes()).hexdigest() for p in checkpoints.rglob("*.pt")
    }  # a pin is a second name
    command = [*SENTINEL, "undo", "--run", str(folder / "demo.toml"), "--yes"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert expected
    for tag, digests in expected.items():
        assert _digests(checkpoints / tag) == digests
    assert {hashlib.sha256(p.read_bytes()).hexdigest() for p in checkpoints.rglob("*.pt")} == everything
    assert (checkpoints / "latest").read_text() == max(expected, key=lambda t: int(t[11:]))
    assert not (folder / "state" / "overrides.json").exists()


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def kill_now_and_then(folder: Path, seed: int, kills: int) -> None:
    """Runs the demo's trainer and watch, killing one of them at random moments; starts watch again each time."""
    rng = random.Random(seed)
    configuration = write_configuration(folder, seed=0)
    state = folder / "state"
    state.mkdir()
    jobs = LocalJobs(state)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    jobs.start(trainer_command(folder, 0), cwd=folder, extra_env={"OMP_NUM_THREADS": "1"}, log_path=state / "job.log")
    until(lambda: bool(Journals(state).poll()))  # of a trainer that has never reported nobody can say what it was
    end = time.monotonic() + 500
    watch: subprocess.Popen[bytes] | None = None
    with (folder / "watch.log").open("ab") as log:
        while time.monotonic() < end:
            if watch is None or watch.poll() is not None:
                if watch is not None and watch.returncode >= 0 and kills == 0:
                    break
                command = [*SENTINEL, "watch", "--run", str(configuration)]
                watch = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            if kills == 0:
                time.sleep(0.5)
                continue
            time.sleep(rng.uniform(2, 10))
            if rng.random() < 0.6:
                watch.kill()
                watch.wait()
            else:
                for writer in jobs.writers():
                    with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
                        psutil.Process(writer.pid).send_signal(signal.SIGKILL)
            kills -= 1
        assert watch is not None
        watch.kill()
        watch.wait()
    jobs.stop(grace_s=5)
    assert watch.returncode in (0, -signal.SIGKILL)


def check_the_end(folder: Path) -> None:
    """No checkpoint lost, the run ended well, every step of the last lineage is there."""
    records = Journals(folder / "state").poll()
    incidents = fold(IncidentLog(folder / "state" / "incidents.jsonl").read())
    assert [i.outcome for i in incidents] == ["recovered"], (folder / "watch.log").read_text()[-3000:]
    assert [r.reason for r in records if isinstance(r, RunFinished)][-1] == "finished"
    assert max(r.global_step for r in records if isinstance(r, Sample)) == 240
    checkpoints = folder / "checkpoints"
    here = {p.name for p in checkpoints.glob("global_step*")}
    away = {p.name for p in (checkpoints / QUARANTINE).glob("*/*/global_step*")}
    saved = {r.tag for r in records if type(r).__name__ == "CheckpointSaved"}
    assert saved <= here | away
    assert (checkpoints / "latest").read_text() == "global_step240"


@pytest.mark.timeout(700)
def test_it_ends_well_although_daemon_and_trainer_are_killed(tmp_path: Path) -> None:
    kill_now_and_then(tmp_path, seed=1, kills=5)
    check_the_end(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_it_ends_well_whenever_they_are_killed(tmp_path: Path, seed: int) -> None:
    kill_now_and_then(tmp_path, seed=100 + seed, kills=12)
    check_the_end(tmp_path)
