"""The checks that need a GPU, in their shrunken form on a CPU: each one, a call that is cut, one without DeepSpeed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import cost, kernels, readings, resume
from benchmarks.gpu.case import Case, Setting, cases
from benchmarks.gpu.running import run_case

ROOT = Path(__file__).parents[2]
EVERY = cases(quick=True)


@pytest.fixture
def without_deepspeed(tmp_path: Path) -> str:
    """PYTHONPATH with which DeepSpeed can't be imported."""
    folder = tmp_path / "first on the path"
    folder.mkdir()
    (folder / "deepspeed.py").write_text("raise ModuleNotFoundError(\"No module named 'deepspeed'\")")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.soak
@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_each_case_answers_on_a_cpu_finds_nothing_wrong_and_imports_no_deepspeed_unless_it_says_so(
    case: Case, without_deepspeed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not case.deepspeed:
        monkeypatch.setenv("PYTHONPATH", without_deepspeed)
    answer = run_case(case.name, case, device="cpu", quick=True, folder=tmp_path, limit_s=200)
    log = (tmp_path / "log.txt").read_text()
    assert answer.get("row"), (answer, log)
    assert answer["row"].get("wrong", []) == [], log


# ---- calls

KERNELS = ("kernel, float32", "kernel, bfloat16", "2.3e9 elements")


def call(folder: Path, *arguments: str, only: tuple[str, ...], **env: str) -> subprocess.CompletedProcess[str]:
    where = (f"--folder={folder / 'rows'}", f"--out={folder / 'out'}", *(f"--only={name}" for name in only))
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--device=cpu", "--quick", *where, *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def brought_back(folder: Path) -> list[tuple[str, Any]]:
    """(what, of which case) of each line that came out, in their order."""
    entries = map(json.loads, (folder / "out" / "rows.jsonl").read_text().splitlines())
    return [
        ("begun", entry["begun"]) if "begun" in entry else (next(k for k in entry if k != "of"), entry.get("of"))
        for entry in entries
    ]


@pytest.mark.soak
def test_a_case_that_hangs_stops_no_other_and_comes_last_in_the_next_call(tmp_path: Path) -> None:
    hung = KERNELS[0]
    ran = call(tmp_path, f"--hang={hung}", "--limit=30", only=KERNELS)
    assert ran.returncode == 1, ran.stderr
    wanted = [("begun", hung), ("failed", hung)]
    wanted += [(what, name) for name in KERNELS[1:] for what in ("begun", "row")]
    assert brought_back(tmp_path) == [("machine", None), *wanted]
    assert f"WRONG: {hung}: no answer after 30 s: killed" in (tmp_path / "out" / "table.txt").read_text()
    added = ("host syncs of the pass",)
    ran = call(tmp_path, only=(*KERNELS, *added))
    assert ran.returncode == 0, ran.stderr
    assert [name for what, name in brought_back(tmp_path)[7:] if what == "begun"] == [*added, hung]
    assert "WRONG" not in (tmp_path / "out" / "table.txt").read_text()


def test_a_call_that_is_killed_or_cut_by_its_minutes_is_gone_on_with_by_the_next(tmp_path: Path) -> None:
    where = (f"--folder={tmp_path / 'rows'}", f"--out={tmp_path / 'out'}", *(f"--only={name}" for name in KERNELS))
    first = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu", "--device=cpu", "--quick", f"--hang={KERNELS[1]}", *where], cwd=ROOT
    )
    begun = f'{{"begun": "{KERNELS[1]}"}}'
    until = time.monotonic() + 100
    rows = tmp_path / "out" / "rows.jsonl"
    while not (rows.exists() and begun in rows.read_text()) and time.monotonic() < until:
        time.sleep(0.1)
    first.kill()
    first.wait()
    assert brought_back(tmp_path)[1:] == [("begun", KERNELS[0]), ("row", KERNELS[0]), ("begun", KERNELS[1])]
    cut = call(tmp_path, "--minutes=0.01", only=KERNELS)
    assert (cut.returncode, len(brought_back(tmp_path))) == (1, 4)
    assert f"not done: {KERNELS[2]}" in cut.stderr
    assert call(tmp_path, only=KERNELS).returncode == 0
    assert [name for what, name in brought_back(tmp_path)[4:] if what == "row"] == [KERNELS[2], KERNELS[1]]


@pytest.mark.soak
def test_what_needs_deepspeed_is_left_for_a_later_call_that_has_it(without_deepspeed: str, tmp_path: Path) -> None:
    zero = next(case.name for case in EVERY if case.module == "readings")
    ran = call(tmp_path, only=(KERNELS[0], zero), PYTHONPATH=without_deepspeed)
    assert ran.returncode == 0, ran.stderr
    assert [name for what, name in brought_back(tmp_path) if what == "row"] == [KERNELS[0]]
    assert f"not done: {zero}: DeepSpeed can't be imported here (ModuleNotFoundError" in ran.stderr
    ran = call(tmp_path, only=(KERNELS[0], zero))
    assert [name for what, name in brought_back(tmp_path) if what == "row"] == [KERNELS[0], zero], ran.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device=cuda",), "sees no CUDA device"),
        (("--device=cpu",), "--device cpu needs --quick"),
        (("--device=cpu", "--quick", "--only=no such"), "no case begins with 'no such'; there are: kernel, float32;"),
    ],
)
def test_what_can_not_be_measured_is_refused_with_a_reason(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", f"--folder={tmp_path / 'rows'}", *arguments],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (3 if "cuda" in arguments[0] else 2, "")
    assert said in ran.stderr
    assert not (tmp_path / "rows" / "rows.jsonl").exists()


# ---- the sanitizer, of which a CPU has none


@pytest.mark.parametrize(
    ("program", "row"),
    [
        ('shift 4; "$@" && echo "========= ERROR SUMMARY: 0 errors"', {"errors": 0, "wrong": []}),
        (
            'echo "========= ERROR SUMMARY: 3 errors"; exit 99',
            {"errors": 3, "wrong": ["compute-sanitizer counts 3 errors, see the log"]},
        ),
        (
            'echo "========= Error: Device not supported"; exit 1',
            {"not_run": "compute-sanitizer can't check here, see the log (exit code 1)"},
        ),
    ],
)
def test_what_the_sanitizer_says_is_taken_over(
    program: str, row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compute-sanitizer").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    setting = Setting(device="cpu", quick=True, folder=tmp_path)
    assert kernels.sanitizer(setting) == row


# ---- figures of a GPU, which no CPU gives

PASS: dict[str, Any] = {"times a read": 1.25, "kernel": "triton", "MB beside, at most": {"variance": 1.0}}
HOOK: dict[str, Any] = {
    "waits by torch": 0,
    "waits by profiler": 0,
    "MB beside, at most": 1.0,
    "% of a step": 0.19,
    "errors": 0,
    "samples": 9,
    "samples expected": 9,
}
RESUME: dict[str, Any] = {
    "resumed_from": 10,
    "repeat": {"first_step": None, "loss": 0.0, "missing": 0},
    "resume": {"first_step": None, "loss": 0.0, "missing": 0},
}
OTHER = {"first_step": 11, "loss": 1e-4, "missing": 0}
READING: dict[str, Any] = {"samples": 12, "steps": 12, "skipped": 1, "errors": 0, "over tolerance": {}}


@pytest.mark.parametrize(
    ("found", "row", "change", "fault"),
    [
        (cost.pass_faults, PASS, {"times a read": 1.33}, "1.33 times one read of v; the goal is at most 1.3"),
        (cost.pass_faults, PASS, {"kernel": "chunked"}, "the pass goes by torch's operations, not by Triton's kernel"),
        (cost.pass_faults, PASS, {"MB beside, at most": {"moments": 268.0}}, "268 MB beside the state while it lasts"),
        (cost.hook_faults, HOOK, {"% of a step": 0.3}, "0.30 % of a step; the goal is under 0.2 %"),
        (cost.hook_faults, HOOK, {"waits by torch": 2}, "2 host synchronisations in 10 steps; the goal is none"),
        (cost.hook_faults, HOOK, {"waits by profiler": 3}, "3 host synchronisations in 10 steps; the goal is none"),
        (cost.hook_faults, HOOK, {"errors": 1}, "the hook counted 1 errors"),
        (cost.hook_faults, HOOK, {"samples": 8}, "8 samples of 9 steps"),
        (cost.hook_faults, HOOK, {"MB beside, at most": 500.0}, "500 MB within a call"),
        (readings.faults, READING, {"over tolerance": {"grad_norm": 0.5}}, "relative error of grad_norm by 5.0e-01"),
        (readings.faults, READING, {"samples": 11}, "11 samples of 12 steps"),
        (readings.faults, READING, {"skipped": 0}, "no step overflowed"),
        (
            resume.faults,
            RESUME,
            {"resume": OTHER},
            "resumed from step 10, from step 11 on, loss by 1e-04; run again it",
        ),
    ],
)
def test_what_is_not_as_it_has_to_be_is_said(
    found: Any, row: dict[str, Any], change: dict[str, Any], fault: str
) -> None:
    options = {cost.hook_faults: {"on_cuda": True}, readings.faults: {"overflows": True}}.get(found, {})
    assert found(row, **options) == []
    (said,) = found(row | change, **options)
    assert said.startswith(fault)


def test_a_training_that_does_not_repeat_itself_is_not_asked_to_resume_exactly() -> None:
    assert resume.faults(RESUME | {"repeat": OTHER, "resume": OTHER}) == []
