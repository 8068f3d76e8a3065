"""`sentinel tune` on real training: what it finds, what it leaves alone, and what a kill costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.vocabulary.pacing import FixedLinear
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.adapters.pagers import until
from tests.tune.runs import SENTINEL, configuration, environment, trainer

pytestmark = pytest.mark.full


def tuned(path: Path, *more: str, what: str = "slw", expect: int = 0) -> dict[str, Any]:
    command = [*SENTINEL, "tune", what, "--run", str(path), "--json", *more]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == expect, f"{ran.returncode}\n{ran.stderr[-3000:]}"
    return dict(json.loads(ran.stdout))


def events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "state" / "tune-slw" / "probes.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("small")
    theirs = ["--save", "checkpoints", "--tensorboard", str(folder / "tensorboard"), "--save-interval", "10"]
    path = configuration(folder, trainer(folder, *theirs), {}, working_directory=str(folder))
    return tuned(path), folder


def test_it_finds_the_longest_duration_that_is_calm(small: tuple[dict[str, Any], Path]) -> None:
    told, _ = small
    verdicts = {probe["total_steps"]: probe["verdict"] for probe in told["probes"]}
    assert verdicts == {40: "calm", 80: "calm", 640: "fluctuates"}
    assert (told["chosen"]["start"], told["chosen"]["total_steps"]) == (8, 80)
    assert "seqlen_start = 8\nseqlen_total_steps = 80" in told["toml"]
    assert told["curriculum_learning"]["schedule_config"]["total_curriculum_step"] == 80


def test_a_probe_ran_with_its_pacing_from_scratch_and_with_the_runs_own_seed(
    small: tuple[dict[str, Any], Path],
) -> None:
    _, folder = small
    for probe in (folder / "state" / "tune-slw").glob("start*"):
        (started,) = [r for r in Journals(probe).poll() if isinstance(r, RunStarted)]
        assert started.seqlen_schedule is not None
        assert f"T{started.seqlen_schedule['total_steps']}" in probe.name
        assert (started.resumed_from, started.seed) == (None, 0)
        assert started.lr_schedule is not None
        assert started.lr_schedule["decay_end"] == 400, "the horizon is not where the learning rate decays to"


def test_a_fluctuation_stops_its_probe_and_a_calm_one_goes_to_the_horizon(
    small: tuple[dict[str, Any], Path],
) -> None:
    told, folder = small
    for probe in told["probes"]:
        assert probe["steps"] == 48 if probe["verdict"] == "calm" else probe["steps"] <= 48
        assert probe["verdict"] == "calm" or probe["max_perplexity_ratio"] > 1.3
        steps = [
            r.global_step
            for r in Journals(folder / "state" / "tune-slw" / f"start8-T{probe['total_steps']}").poll()
            if isinstance(r, Sample)
        ]
        assert max(steps) == probe["steps"]
    assert told["cost"]["steps"] == sum(probe["steps"] for probe in told["probes"])
    assert told["cost"]["full_run_tokens"] == 400 * 16 * 128


def test_nothing_of_the_runs_own_is_touched_and_nothing_is_left_running(small: tuple[dict[str, Any], Path]) -> None:
    told, folder = small
    assert not (folder / "checkpoints").exists()
    assert not (folder / "tensorboard").exists()
    assert sorted(p.name for p in (folder / "state").iterdir()) == ["tune-slw"]
    assert Path(told["plot"]).read_bytes().startswith(b"\x89PNG")
    for probe in (folder / "state" / "tune-slw").glob("start*"):
        assert LocalJobs(probe).writers() == ()


def test_the_same_search_again_runs_nothing_and_another_in_its_folder_is_refused(
    small: tuple[dict[str, Any], Path],
) -> None:
    told, folder = small
    before = events(folder)
    assert tuned(folder / "small.toml")["probes"] == told["probes"]
    assert events(folder) == before
    text = (folder / "small.toml").read_text()
    (folder / "other.toml").write_text(text.replace("horizon_steps = 48", "horizon_steps = 52"))
    command = [*SENTINEL, "tune", "slw", "--run", str(folder / "other.toml")]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 2
    assert "the folder holds another search" in ran.stderr


def first_steps(probe: Path) -> bool:
    return any(isinstance(r, Sample) for r in Journals(probe).poll())


def test_vocabulary_raritys_start_and_duration_are_searched(tmp_path: Path) -> None:
    """Five of 32 samples at first: over a long T they are learnt by heart."""
    indexed = ["sentinel-data", "analyze", "--seqlen", "128", "--validation-share", "0.5", "--metric", "voc"]
    tune = {"voc_starts": [10], "voc_index": str(tmp_path / "voc"), "durations": [80, 640], "first_duration": 80}
    path = configuration(tmp_path, trainer(tmp_path), tune)
    made = [str(Path(sys.executable).with_name(indexed[0])), *indexed[1:], "--data", str(tmp_path / "text.txt")]
    subprocess.run([*made, "--output", str(tmp_path)], env=environment(), check=True, timeout=100)
    told = tuned(path, what="voc")
    assert {p["total_steps"]: p["verdict"] for p in told["probes"]} == {80: "calm", 640: "fluctuates"}
    assert told["chosen"]["voc"]["difficulty"]["total_steps"] == 80
    for steps in (80, 640):
        (started,) = starts(tmp_path / "state" / "tune-voc" / f"start10-T{steps}")
        assert started.curriculum_schedule is not None
        assert started.curriculum_schedule["voc"]["difficulty"]["total_steps"] == steps


@pytest.mark.soak  # vocabulary rarity takes the same way
def test_random_ltds_start_and_duration_are_searched(tmp_path: Path) -> None:
    path = configuration(tmp_path, trainer(tmp_path), {"starts": [16], "durations": [40, 640]})
    told = tuned(path, what="random-ltd")
    assert {p["total_steps"]: p["verdict"] for p in told["probes"]} == {40: "calm", 640: "calm"}
    assert "longer ones may be as well" in told["reason"]
    probe = tmp_path / "state" / "tune-random-ltd" / "start16-T640"
    (started,) = starts(probe)
    assert started.random_ltd_schedule == told["chosen"]
    kept = {r.global_step: r.kept_tokens for r in Journals(probe).poll() if isinstance(r, Sample)}
    assert kept[48] == 16, "its tokens are really dropped"


def starts(probe: Path) -> list[RunStarted]:
    return [r for r in Journals(probe).poll() if isinstance(r, RunStarted)]


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    """Killed once with a probe done and one at work, which goes on alone; once more with its probe killed as well."""
    path = configuration(tmp_path, trainer(tmp_path), {})
    state = tmp_path / "state" / "tune-slw"

    def killed_when(probe: str) -> None:
        """Kills the search, and nothing else, once the probe has made its first steps."""
        command = [*SENTINEL, "tune", "slw", "--run", str(path)]
        search = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: search.poll() is not None or first_steps(state / probe))
        assert search.poll() is None, "it ended before it was killed"
        search.kill()
        search.wait()

    killed_when("start8-T40")
    (started,) = (r for r in Journals(state / "start8-T40").poll() if isinstance(r, RunStarted))
    assert started.pid is not None
    os.kill(started.pid, signal.SIGKILL)
    killed_when("start8-T80")
    told = tuned(path)
    lives = {(probe["total_steps"], probe["life"]): probe["verdict"] for probe in told["probes"]}
    assert lives == {(40, 1): "lost", (40, 2): "calm", (80, 1): "calm", (640, 1): "fluctuates"}
    assert told["chosen"]["total_steps"] == 80
    began = [(e["probe"]["change"], e["life"]) for e in events(tmp_path) if e["event"] == "began"]
    assert began == [(f"start 8, T {t}", life) for t, life in ((40, 1), (40, 2), (80, 1), (640, 1))]


def test_a_search_that_is_asked_to_end_stops_its_probe_first(tmp_path: Path) -> None:
    path = configuration(tmp_path, trainer(tmp_path), {"horizon_steps": 390})  # farther than it comes
    state = tmp_path / "state" / "tune-slw"
    command = [*SENTINEL, "tune", "slw", "--run", str(path)]
    search = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: first_steps(state / "start8-T40"))
    search.terminate()
    assert search.wait(120) != 0
    assert LocalJobs(state / "start8-T40").writers() == ()
    assert [(e["event"], e.get("lost")) for e in events(tmp_path)] == [
        ("searched", None),
        ("began", None),
        ("ended", True),
    ]


@pytest.mark.soak
def test_several_probes_at_once_come_to_the_same_answer(tmp_path: Path) -> None:
    path = configuration(tmp_path, trainer(tmp_path), {"starts": [8, 16]})
    told = tuned(path, "--parallel", "2")
    assert told["chosen"]["start"] == 8
    assert told["chosen"]["total_steps"] == 80
    assert "not needed" in {probe["verdict"] for probe in told["probes"]}


def test_a_trainer_that_ends_by_itself_twice_is_for_a_person(tmp_path: Path) -> None:
    path = configuration(tmp_path, trainer(tmp_path, "--data", "nowhere.txt"), {})
    command = [*SENTINEL, "tune", "slw", "--run", str(path)]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 4
    assert "has ended twice by itself" in ran.stderr
    assert "job.log" in ran.stderr


def test_a_command_that_would_use_the_runs_own_checkpoints_is_refused_before_anything_is_started(
    tmp_path: Path,
) -> None:
    words = ["python", "pretrain_gpt.py", "--seq-length", "128", "--lr-warmup-iters", "10", "--train-iters", "400"]
    path = configuration(tmp_path, words, {})
    schedule = FixedLinear(start=8, full=128, total_steps=40).to_json()
    started = {"kind": "run_started", "attempt": 1, "time_unix_s": 1.0, "seqlen_schedule": schedule}
    (tmp_path / "state" / "attempts").mkdir(parents=True)
    (tmp_path / "state" / "attempts" / "0001.jsonl").write_text(json.dumps(started) + "\n")
    command = [*SENTINEL, "tune", "slw", "--run", str(path)]
    ran = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 2
    assert "does not name the checkpoints folder" in ran.stderr
