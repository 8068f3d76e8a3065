"""The papers' tables, small: they are made of whole runs, these are the trainer's own, and what they count."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers.cases import BASELINE, CASES, EVERYWHERE, QUICK, SLW, TINY, Run, plan
from benchmarks.papers.cuda import on, search
from benchmarks.papers.reading import Cost, Curve, Instability, diverged
from benchmarks.papers.running import Runs, records_of
from benchmarks.papers.tokens import VOCABULARY, make_token_file
from sentinel.vocabulary.pacing import FixedLinear
from sentinel.vocabulary.sample import Sample, Validation
from sentinel.vocabulary.training_settings import TrainingSettings
from trainer_hooks.gpt.arguments import parse, users_own
from trainer_hooks.gpt.data import load_corpus
from trainer_hooks.gpt.schedules import Schedules

ROOT = Path(__file__).parents[2]


def stability(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/stability.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("stability")
    return folder, stability("--quick", "--json", "--folder", str(folder), "--plot", str(folder / "figure.png"))


def test_every_case_has_its_row_and_the_same_tokens(
    quick: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, ran = quick
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["not_made"] == []
    rows = document["table_1"]
    assert [row["case"] for row in rows] == [*(c.name for c in CASES), *2 * [c.name for c in EVERYWHERE]]
    for row in rows:
        (tokens,), (steps,), (over,) = row["tokens"], row["steps"], row["over"]
        assert over <= steps
        if "held" in row["case"]:
            assert tokens == (6 * QUICK.lr_warmup + QUICK.held_steps) * QUICK.batch * QUICK.seqlen
        else:
            assert QUICK.tokens <= tokens <= QUICK.tokens + QUICK.batch * QUICK.seqlen, row["case"]
        share = {"LR / 4": 0.25, "LR x 0.35, held": 0.35}.get(row["case"], 1)
        assert row["largest_lr"] == pytest.approx(share * row["lr"]), row["case"]  # every warmup comes to its peak
    assert {row["signal"] for row in document["table_3"]} == {"adam_variance_l1", "adam_variance_max"}
    assert {row["method"] for row in document["table_3"]} == {"plain", "prewhitened"}
    for row in document["to_the_baselines_best"]:
        if row["case"] == "baseline":
            assert (row["own_reached"], row["own_times_fewer_tokens"]) == (1, 1.0)
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_runs_that_are_done_are_not_run_again(quick: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = quick
    journals = {path: path.stat().st_mtime_ns for path in folder.glob("*/state/attempts/*")}
    again = stability("--quick", "--folder", str(folder))
    assert again.returncode == 0, again.stderr
    assert "17 runs are done already" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/state/attempts/*")} == journals
    for words in ("Table 1", "Table 3", "Tokens and time", "What this says"):
        assert words in again.stdout


def test_a_run_that_was_cut_short_is_no_result(tmp_path: Path) -> None:
    run = BASELINE.run(QUICK, 1e-3, 0)
    state = tmp_path / run.name / "state"
    state.mkdir(parents=True)
    (state / "KILL").touch()
    ran = trained(run, state)
    assert ran.returncode == 0, ran.stderr
    assert (state / "attempts" / "0001.jsonl").is_file()
    assert records_of(tmp_path / run.name) is None


def test_a_run_among_others_in_one_process_is_the_run_that_it_is_alone(
    quick: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run = plan(QUICK, [0])[-1]
    among = records_of(quick[0] / run.name)
    assert trained(run, tmp_path / "state").returncode == 0
    alone = records_of(tmp_path)
    assert among is not None
    assert alone is not None
    assert losses(among) == losses(alone)


def test_where_no_minute_is_left_nothing_is_run_and_it_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    Runs(tmp_path, minutes=-1, say=said.append).perform(plan(QUICK, [0]))
    assert said == ["the minutes are over: 17 runs are not made"]
    assert list(tmp_path.iterdir()) == []


def test_the_quarter_of_the_rate_is_the_baseline_at_that_rate_and_is_run_once() -> None:
    runs = plan(TINY, [0, 1, 2])
    assert len(runs) == 54
    assert len({run.name for run in runs}) == 51


def test_a_spike_that_comes_back_has_not_diverged_and_a_level_that_stays_has() -> None:
    assert not diverged([4, 3, 2, *[6] * 19, 2, *[6] * 19])
    assert diverged([4, 3, 2, *[2.5] * 20])
    assert diverged([4, math.nan])
    assert not diverged([4, 4, 4])


def test_a_ratio_is_over_all_steps_before_or_over_those_of_its_length() -> None:
    curve = made([(8, 3.0), (128, 4.0), (128, 5.0), (8, 3.5)])
    assert curve.ratios == pytest.approx([1, 4 / 3, 5 / 3, 3.5 / 3])
    assert curve.ratios_by_length == pytest.approx([1, 1, 1.25, 3.5 / 3])
    assert Instability.of(curve.ratios) == Instability(steps=4, over=2, largest=5 / 3)


def test_time_is_counted_by_what_a_step_computes_and_not_by_who_was_in_the_way() -> None:
    calm, disturbed = made([(128, 4.0)] * 5, seconds=1.0), made([(128, 4.0)] * 3 + [(8, 4.0)], seconds=50.0)
    cost = Cost.of([calm, disturbed])
    assert cost.seconds(disturbed) == {1: 1.0, 2: 2.0, 3: 3.0, 4: 53.0}
    seen = replace(disturbed, validations=(Validation(attempt=1, global_step=2, time_unix_s=0, loss=3.0),))
    reached = seen.reached(3.0, cost)
    assert reached is not None
    assert (reached.tokens, reached.time_s) == (256, 2.0)
    assert seen.reached(2.9, cost) is None


@pytest.mark.soak
def test_the_search_ends_at_the_rate_that_diverges_and_runs_slw_there(tmp_path: Path) -> None:
    task = replace(QUICK, rates=(2.0,), micro=2, steps=40)
    runs = Runs(tmp_path, minutes=3, say=lambda _: None)
    asked = search(task, runs, [0, 1], lambda _: None)
    highest = asked[-1].rate
    there = [(run.case, run.seed) for run in asked if run.rate == highest]
    assert sorted(there) == [("SLW", 0), ("SLW", 1), ("baseline", 0), ("baseline", 1)]
    losses_of = {run: [s.loss for s in Curve.of(run, runs.records(run) or ()).samples] for run in asked}
    first = [run for run in asked if run.case == "baseline" and run.seed == 0]
    assert [diverged(losses_of[run]) for run in first] == [run.rate == highest for run in first]


def test_the_trainer_takes_what_a_gpu_is_asked_to_run(tmp_path: Path) -> None:
    task = on(tmp_path / "library.bin", seqlen=2048, batch=256)
    assert task.tokens == 300 * 2048 * 256
    for case, start, steps in ((BASELINE, 2048, 0), (SLW, 64, 120)):
        settings = parse([*case.run(task, 6e-4, 0).arguments])
        assert (settings.preset, settings.precision) == ("gpt3-125M", "bf16")
        assert settings.global_batch % settings.micro_batch == 0
        own_json, told = users_own(settings)
        assert own_json == {}
        assert Schedules.of(settings, told, TrainingSettings()).seqlen == FixedLinear(
            start=start, full=2048, total_steps=steps
        )


@pytest.mark.soak
def test_a_made_token_file_is_whole_numbers_that_the_vocabulary_has(tmp_path: Path) -> None:
    path = make_token_file(tmp_path / "library.bin")
    assert 1_000_000 < path.stat().st_size <= 60_000_000
    corpus = load_corpus([path], seqlen=1024, vocabulary=VOCABULARY, validation_share=0.02)
    taken = corpus.training(np.arange(200))
    assert 256 < len(np.unique(taken)) <= VOCABULARY
    assert make_token_file(path) == path


def trained(run: Run, state: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer_hooks.gpt", *run.arguments, f"--state-dir={state}", *more],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def losses(records: Sequence[object]) -> list[float]:
    return [r.loss for r in records if isinstance(r, Sample)]


def made(lengths_and_losses: Sequence[tuple[int, float]], *, seconds: float = 1.0) -> Curve:
    samples = tuple(
        Sample(
            attempt=1,
            global_step=step,
            time_unix_s=0.0,
            loss=loss,
            seqlen=seqlen,
            step_time_s=seconds,
            global_batch_samples=1,
            consumed_tokens=128 * step,
        )
        for step, (seqlen, loss) in enumerate(lengths_and_losses, 1)
    )
    return Curve(run=BASELINE.run(QUICK, 1e-3, 0), samples=samples, validations=())
