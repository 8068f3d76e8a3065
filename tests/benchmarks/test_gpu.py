"""All checks that need a GPU as one command: its shrunken form on a CPU, and what it makes of figures of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.report import PartReport, text
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.running import run_part
from benchmarks.gpu.setting import UNFINISHED, Setting
from tools.gpu_environment import name_of, requirements, torch_for

ROOT = Path(__file__).parents[2]


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--device=cpu", "--quick", f"--folder={folder}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_part_runs_on_a_cpu_and_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    results = tmp_path / "results.txt"
    ran = command("--minutes=14", "--json", f"--results={results}", folder=tmp_path / "rows")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert [part["name"] for part in document["parts"]] == list(PARTS)
    for part in document["parts"]:
        assert part["rows"], part["name"]
        assert part["faults"] == part["not_done"] == [], part["name"]
    shown = results.read_text()
    assert all(part.TITLE in shown for part in PARTS.values())
    kept = {path: path.read_bytes() for path in (tmp_path / "rows").glob("*.jsonl")}
    again = command("--minutes=5", "--json", "--only=readings", folder=tmp_path / "rows")
    assert json.loads(again.stdout)["parts"] == document["parts"][:1]
    assert {path: path.read_bytes() for path in (tmp_path / "rows").glob("*.jsonl")} == kept


def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", f"--folder={tmp_path / 'rows'}"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "sees no CUDA device" in ran.stderr
    assert not (tmp_path / "rows").exists()


# ---- cases that end in ways of their own

WORKER = """
import json, os, sys, time
given = json.loads(sys.argv[2])
for case in ("first", "dies", "fails", "hangs", "last"):
    if case in given["leave_out"]:
        continue
    print(json.dumps({"begin": case}), flush=True)
    if case == "dies":
        os._exit(7)
    if case == "fails":
        print(json.dumps({"case": case, "failed": "RuntimeError: CUDA error: unspecified launch failure"}), flush=True)
        os._exit(1)
    if case == "hangs":
        time.sleep(600)
    print("what a library prints")
    print(json.dumps({"case": case, "row": {"figure": len(given["leave_out"])}}), flush=True)
"""


def test_a_case_that_dies_or_hangs_takes_no_other_along(tmp_path: Path) -> None:
    worker = [sys.executable, "-c", WORKER]

    def run(*, without: tuple[str, ...] = ()) -> tuple[Rows, dict[str, str]]:
        rows = Rows(tmp_path / "part.jsonl")
        rows.rows |= {case: {} for case in without}
        return rows, run_part(
            "part",
            rows,
            device="cpu",
            quick=True,
            folder=tmp_path / "part",
            seconds=6,
            say=lambda _: None,
            worker=worker,
        )

    rows, failed = run()
    assert rows.rows == {"first": {"figure": 0}}
    assert failed["dies"].startswith("ended with exit code 7, see ")
    assert failed["fails"].startswith("RuntimeError: CUDA error")
    assert failed["hangs"] == "stopped, since its minutes are over"
    assert "what a library prints" in (tmp_path / "part.log").read_text()
    rows, failed = run(without=("dies", "hangs"))
    assert rows.rows["last"] == {"figure": 4}  # first from the file, dies, hangs, and fails in this call
    assert list(failed) == ["fails"]


def test_a_row_that_was_torn_and_one_that_is_not_finished_are_measured_again(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "part.jsonl")
    rows.add("whole", {"figure": 1.5})
    rows.add("cut short", {"figure": 1, UNFINISHED: "two trainings"})
    with (tmp_path / "part.jsonl").open("a") as file:
        file.write('{"case": "torn", "row": {"fig')
    again = Rows(tmp_path / "part.jsonl")
    assert again.done == ["whole"]
    assert again.rows["cut short"]["figure"] == 1
    again.set_aside()
    assert Rows(tmp_path / "part.jsonl").rows == {}
    assert (tmp_path / "part.jsonl.1").exists()


# ---- figures of a GPU, which no CPU gives

PASS: dict[str, Any] = {
    "floor_ms": 0.12,
    "ours_ms": 0.15,
    "kernel": "triton",
    "peer_ms": 40.0,
    "step_ms": None,
    "host_ms": 0.1,
    "more_ms": {},
    "judged": True,
}
HOOK: dict[str, Any] = {
    "tokens": 8192,
    "step_ms": 80.2,
    "step_without_ms": 80.1,
    "host_ms": {"each": 0.9, "interval": 1.4},
    "device_ms": {"each": 0.15, "interval": 0.4},
    "waits_by_torch": 0,
    "waits_by_profiler": 0,
    "memory_added_mb": 0.1,
    "memory_beside_mb": 0.2,
    "percent": 0.19,
    "errors": 0,
    "judged": True,
}
RESUME: dict[str, Any] = {
    "steps": 20,
    "resumed_from": 10,
    "repeat": {"first_step": None, "loss": 0.0, "missing": 0},
    "resume": {"first_step": None, "loss": 0.0, "missing": 0},
    "not_deterministic": ["scaled dot product attention"],
}
READING: dict[str, Any] = {
    "refused": None,
    "worst": {"loss": 0.0},
    "samples": 12,
    "steps": 12,
    "skipped": 1,
    "errors": 0,
    "fp16": True,
    "over_tolerance": {},
}
TESTS: dict[str, Any] = {"passed": 4, "failures": [], "judged": True}


@pytest.mark.parametrize(
    ("part", "row", "change", "fault"),
    [
        ("cost", PASS, {"ours_ms": 0.16}, "case: 1.33 times one read of v; the goal is at most 1.3"),
        ("cost", PASS, {"kernel": "chunked"}, "case: the pass went by torch's operations, not by Triton's kernel"),
        ("cost", HOOK, {"percent": 0.3}, "case: 0.30 % of a step; the goal is under 0.2 %"),
        ("cost", HOOK, {"waits_by_torch": 2}, "case: 2 host synchronisations in 10 steps; the goal is none"),
        ("cost", HOOK, {"waits_by_profiler": 3}, "case: 3 host synchronisations in 10 steps; the goal is none"),
        ("cost", HOOK, {"errors": 1}, "case: the hook counted 1 errors"),
        ("readings", READING, {"over_tolerance": {"grad_norm": 0.5}}, "case: relative error of grad_norm by 5.0e-01"),
        ("readings", READING, {"samples": 11}, "case: 11 samples of 12 steps"),
        ("readings", READING, {"skipped": 0}, "case: no step overflowed"),
        ("tests", TESTS, {"failures": ["test_x"]}, "case: test_x"),
        ("tests", TESTS, {"passed": 0}, "case: no test ran"),
        (
            "resume",
            RESUME,
            {"resume": {"first_step": 11, "loss": 1e-4, "missing": 0}},
            "case: resumed from step 10, from step 11 on, loss by 1e-04; run again it is the same to the bit",
        ),
    ],
)
def test_what_is_not_as_it_has_to_be_is_said(
    part: str, row: dict[str, Any], change: dict[str, Any], fault: str
) -> None:
    assert PartReport(name=part, rows={"case": row}).faults == []
    changed = PartReport(name=part, rows={"case": row | change})
    (found,) = changed.faults
    assert found.startswith(fault)
    assert found in text(changed)


def test_a_training_that_does_not_repeat_itself_is_not_asked_to_resume_exactly() -> None:
    other = {"first_step": 3, "loss": 1e-4, "missing": 0}
    assert PARTS["resume"].faults({"case": RESUME | {"repeat": other, "resume": other}}) == []


def test_each_part_has_cases_for_a_gpu(tmp_path: Path) -> None:
    setting = Setting(device="cuda", quick=False, folder=tmp_path, until=0.0)
    for name in ("cost", "tests", "demo", "diverging", "tokens"):  # the others join a process group at once
        assert PARTS[name].cases(setting), name


# ---- its environment


@pytest.mark.parametrize(("driver", "wheel"), [("13.0", "torch>=2.4"), ("12.4", "torch>=2.4,<2.11")])
def test_the_torch_that_is_installed_runs_on_the_driver(driver: str, wheel: str) -> None:
    assert torch_for(driver) == wheel


def test_what_is_installed_beside_torch_is_what_the_project_says() -> None:
    names = {name_of(line) for line in requirements()}
    assert names >= {"deepspeed", "prometheus_client", "msgspec", "typer", "pytest"}
    assert "torch" not in names


@pytest.mark.full
def test_without_an_index_the_machines_torch_is_lent_and_what_is_missing_is_named(tmp_path: Path) -> None:
    programs, lent = tmp_path / "bin", tmp_path / "lent"
    (lent / "torch").mkdir(parents=True)
    (lent / "torch" / "__init__.py").write_text(
        "__version__ = '2.11.0'\nclass cuda:\n    is_available = staticmethod(lambda: True)\n"
    )
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho '| Driver Version: 580.1   CUDA Version: 13.0 |'\n")
    (programs / "nvidia-smi").chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "tools/gpu_environment.py", f"--venv={tmp_path / 'venv'}"],
        cwd=ROOT,
        env={
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(lent),
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 3, ran.stderr
    assert f"{lent}\n" in next((tmp_path / "venv").rglob("the_machines_own.pth")).read_text()
    assert "torch 2.11.0 in" in ran.stdout
    assert "still missing: prometheus_client" in ran.stdout
    assert "PIP_FIND_LINKS=DIR" in ran.stdout
    assert "without DeepSpeed there is nothing to check" in ran.stderr
