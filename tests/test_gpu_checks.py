"""The runner of the checks that need a GPU: what is written when, what hangs, what is killed, what comes next."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu.__main__ import _answer
from benchmarks.gpu.case import Case, cases
from benchmarks.gpu.rows import MOST_TRIES, Rows
from benchmarks.gpu.running import run_case
from benchmarks.gpu.table import faults, left, table
from sentinel.vocabulary.errors import ConfigError
from tools import gpu_environment

ROOT = Path(__file__).parents[1]
MACHINE = {"hardware": "one H100", "form": "full", "deepspeed": "0.19.8"}


def case(name: str, **changed: Any) -> Case:
    return Case(name=name, module="kernels", measure="large", **changed)


A, B, C = case("a"), case("b"), case("c")


def names(found: list[Case]) -> list[str]:
    return [one.name for one in found]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def gone(pid: int) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


# ---- what is known so far


def test_what_was_begun_and_has_not_answered_comes_last_and_a_case_that_was_cut_does_not(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.add({"begun": "a"})
    rows.add({"begun": "b"})
    rows.add({"of": "b", "cut": "the minutes were over"})
    again = Rows(tmp_path)  # as after a SIGKILL in the middle of a
    assert names(again.to_do([A, B, C])) == ["b", "c", "a"]
    assert again.failed == {"a": "begun, and the call ended before it answered"}
    again.add({"begun": "a"})
    again.add({"of": "a", "row": {"x": 1}, "took_s": 2.0})
    assert names(again.to_do([A, B, C])) == ["b", "c"]
    assert again.failed == {}


def test_a_case_is_given_up_after_so_many_tries_and_measured_again_where_that_is_asked(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.of_machine(MACHINE)
    for _ in range(MOST_TRIES):
        assert names(rows.to_do([A])) == ["a"]
        rows.add({"begun": "a"})
        rows.add({"of": "a", "failed": "no answer after 90 s: killed"})
    assert rows.to_do([A]) == []
    assert left(rows, [A]) == [f"a: given up after {MOST_TRIES} tries"]
    assert faults(rows) == ["a: no answer after 90 s: killed"]
    rows.add({"again": "a"})
    assert names(Rows(tmp_path).to_do([A])) == ["a"]


def test_a_torn_line_costs_that_line_alone(tmp_path: Path) -> None:
    Rows(tmp_path).add({"of": "a", "row": {"x": 1.5}, "took_s": 1.0})
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"of": "b", "row": {"x"')
    Rows(tmp_path).add({"of": "c", "row": {"x": 2}, "took_s": 1.0})
    assert list(Rows(tmp_path).rows) == ["a", "c"]


def test_each_line_is_in_the_out_folder_at_once_and_is_taken_up_from_there_on_a_fresh_machine(tmp_path: Path) -> None:
    here, out = tmp_path / "here", tmp_path / "out"
    rows = Rows(here, out)
    for entry in ({"begun": "a"}, {"of": "a", "row": {"x": 1}, "took_s": 1.0}, {"begun": "b"}):
        rows.add(entry)
        assert lines(out / "rows.jsonl")[-1] == entry
    fresh = Rows(tmp_path / "fresh machine", out)
    assert names(fresh.to_do([A, B, C])) == ["c", "b"]
    emptied = tmp_path / "emptied"
    Rows(here, emptied)
    assert (emptied / "rows.jsonl").read_bytes() == (here / "rows.jsonl").read_bytes()


def test_rows_of_another_machine_or_form_are_not_mixed_and_a_deepspeed_that_was_brought_later_may_be(
    tmp_path: Path,
) -> None:
    Rows(tmp_path).of_machine(MACHINE | {"deepspeed": "none: ModuleNotFoundError"})
    Rows(tmp_path).of_machine(MACHINE)
    assert Rows(tmp_path).machine == MACHINE
    for change in ({"hardware": "one H200"}, {"form": "quick"}):
        with pytest.raises(ConfigError, match="another machine or form"):
            Rows(tmp_path).of_machine(MACHINE | change)


def test_the_table_has_figures_what_is_wrong_and_what_is_not_done_and_why(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.of_machine(MACHINE | {"deepspeed": "none: no module"})
    rows.add({"of": "a", "row": {"ms": {"one read": 1.23456}, "wrong": ["too slow"]}, "took_s": 3.0})
    text = table(rows, [A, B, case("zero", deepspeed=True)])
    assert "== a (3 s)\n  ms: one read 1.235\n" in text
    assert text.endswith(
        "WRONG: a: too slow\nnot done: b\nnot done: zero: DeepSpeed can't be imported here (no module)"
    )


# ---- a case in its process


def hanging(folder: Path, limit_s: float) -> dict[str, Any]:
    return run_case("a", A, device="cpu", quick=True, folder=folder, limit_s=limit_s, hang=True)


def children_of(log: Path) -> list[int]:
    """Two: one that only the runner ends, and one that ends with its parent."""
    found = re.search(r"its children are (\d+) and (\d+)\n", log.read_text() if log.exists() else "")
    return [int(pid) for pid in found.groups()] if found else []


def test_a_case_that_hangs_is_killed_after_its_time_with_what_it_has_started(tmp_path: Path) -> None:
    for limit_s in (1.0, 5.0, 20.0):  # until it has come so far as to start something
        began = time.monotonic()
        answer = hanging(tmp_path, limit_s)
        assert time.monotonic() - began < limit_s + 10
        assert answer == {"failed": f"no answer after {limit_s:.0f} s: killed", "in_time": False}
        if children := children_of(tmp_path / "log.txt"):
            break
    assert [gone(child) for child in children] == [True, True]


RUNNER = """
import sys
from pathlib import Path
from benchmarks.gpu.rows import Rows
from tests.test_gpu_checks import hanging
here, out = map(Path, sys.argv[1:])
Rows(here, out).add({"begun": "a"})
hanging(here, 200.0)
"""


def test_after_sigkill_of_the_runner_the_rows_are_there_and_no_case_goes_on(tmp_path: Path) -> None:
    here, out = tmp_path / "here", tmp_path / "out"
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(here), str(out)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        until = time.monotonic() + 60
        while not (children := children_of(here / "log.txt")) and time.monotonic() < until:
            time.sleep(0.05)
        other, own = children
        worker = psutil.Process(own).ppid()
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    assert lines(out / "rows.jsonl") == [{"begun": "a"}]
    assert gone(worker)
    assert gone(own)
    os.kill(other, signal.SIGKILL)  # where the runner itself is killed, nothing ends it


@pytest.mark.parametrize(
    ("limit_s", "seconds", "last"),
    [(1.0, 60.0, {"of": "a", "failed": "no answer after 1 s: killed"}), (90.0, 1.0, {"of": "a", "cut": "the minutes"})],
)
def test_a_hang_is_a_try_and_the_end_of_the_minutes_is_none(
    limit_s: float, seconds: float, last: dict[str, str], tmp_path: Path
) -> None:
    rows = Rows(tmp_path)
    asked = argparse.Namespace(limit=None, device="cpu", quick=True, hang=["a"])
    _answer(case("a", limit_s=limit_s), rows, asked, tmp_path, seconds)
    begun, ended = lines(tmp_path / "rows.jsonl")
    assert begun == {"begun": "a"}
    assert ended.keys() == last.keys()
    assert rows.tries["a"] == ("failed" in last)
    assert names(rows.to_do([A, B])) == (["b", "a"] if "failed" in last else ["a", "b"])


@pytest.mark.parametrize("quick", [True, False])
def test_each_case_has_a_function_a_name_of_its_own_and_a_place(quick: bool) -> None:
    every = cases(quick=quick)
    assert len({one.name for one in every}) == len(every)
    for one in every:
        assert callable(getattr(importlib.import_module(f"benchmarks.gpu.{one.module}"), one.measure)), one
        assert one.limit_s <= (90 if every.index(one) < names(every).index("four ranks on one device") else 300)
    before_deepspeed = itertools.takewhile(lambda one: not one.deepspeed, every)
    assert {one.module for one in before_deepspeed} == {"kernels", "cost", "tests"}


# ---- its environment


@pytest.mark.parametrize(("driver", "wheel"), [("13.0", "torch>=2.4"), ("12.4", "torch>=2.4,<2.11")])
def test_the_torch_that_is_installed_runs_on_the_driver(driver: str, wheel: str) -> None:
    assert gpu_environment.torch_for(driver) == wheel


def plain(name: str) -> str:
    return re.split(r"[\s\[<>=!~;]", name, maxsplit=1)[0].lower().replace("_", "-")


def test_what_is_carried_is_all_that_deepspeed_and_the_hooks_need_beside_torch_and_nothing_of_the_daemon() -> None:
    carried = {plain(name) for name in gpu_environment.NEEDED}
    for name in carried:
        for line in requires(name) or []:
            if "extra ==" not in line and "python_version <" not in line and "platform" not in line:
                assert plain(line) in carried | {"torch"}, (name, line)
    own = [line for line in requires("training-sentinel") or [] if "extra" not in line]
    assert {plain(line) for line in own} <= carried
    assert not carried & {"typer", "rich", "msgspec", "scipy", "matplotlib", "tree-sitter", "pyarrow"}


def test_pydantic_comes_with_the_packages_that_it_takes_in_one_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = dict.fromkeys(gpu_environment.NEEDED, "1.0") | {"pydantic": None, "hjson": None}
    monkeypatch.setattr(gpu_environment, "_look", lambda *_: {"versions": versions})
    assert gpu_environment._missing(Path("python")) == [
        *("hjson", "pydantic", "pydantic_core", "annotated-types", "typing-extensions", "typing-inspection")
    ]


def test_without_torch_driver_and_network_one_sentence_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('there is none')")
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gpu_environment.py"), "--", "--minutes", "9"],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (3, "")
    (sentence,) = ran.stderr.splitlines()
    assert sentence == "make gpu: no Python here has a torch that sees a GPU, and nvidia-smi finds no NVIDIA driver"
