"""examples/plain_pytorch.py at an LR that its model does not bear: `sentinel watch` in mode act rescues it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample
from tests.adapters.pagers import free_port
from tests.support.log_lines import lines_of

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
CONFIGURATION = """\
[run]
name = "plain"
checkpoints = "checkpoints"
state_dir = "state"

[launcher]
command = {command}

[watch]
poll_interval_s = 0.3

[policy]
mode = "act"
margin_steps = 10
hold_steps = 60
confirm_within_s = 200

[[policy.ladder]]
name = "earlier + reseed + LR / 8"
hypothesis = "this model does not bear this learning rate"
target = "before_risky_window"
reseed = true
lr_factor = 0.125
"""
ONE = ()
TWO_RANKS = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port={port}")


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    launcher, sharding = request.param
    (tmp_path / "state").mkdir()
    words = [
        "--output",
        str(tmp_path),
        "--steps",
        "240",
        "--without-norms",
        "--lr",
        "0.06",
        "--pause",
        "0.05",
        *sharding,
    ]
    start = [word.format(port=free_port()) for word in launcher]
    command = [sys.executable, *start, str(ROOT / "examples" / "plain_pytorch.py"), *words]
    (tmp_path / "plain.toml").write_text(CONFIGURATION.format(command=dump_json(command)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    jobs = LocalJobs(tmp_path / "state")
    jobs.start(command, cwd=tmp_path, extra_env={}, log_path=tmp_path / "state" / "job.log")
    yield tmp_path
    jobs.stop(grace_s=20)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "run",
    [(ONE, ()), pytest.param((TWO_RANKS, ("--fsdp",)), marks=pytest.mark.soak)],
    ids=["one", "fsdp"],
    indirect=True,
)
def test_a_plain_loop_that_diverges_is_rolled_back_and_its_decisions_are_confirmed(run: Path) -> None:
    line = [sys.executable, "-m", "sentinel", "watch", "--run", str(run / "plain.toml")]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=800, check=False)
    job = (run / "state" / "job.log").read_text()[-2000:]
    assert ran.returncode == 0, f"{(ran.stdout + ran.stderr)[-3000:]}\n{job}"
    events: list[dict[str, Any]] = lines_of(run / "state" / "incidents.jsonl")
    (proved,) = (e for e in events if e["event"] in ("proved", "not_verified", "not_proved"))
    assert proved["event"] == "proved"
    changed = {check["what"] for check in proved["checks"] if check["changed"]}
    assert changed >= {"seed", "lr_schedule", "lr of the first step", "lr of the first steps"}
    assert {check["answer"] for check in proved["checks"]} == {"confirmed"}
    records = list(Journals(run / "state").poll())
    first, second = (r for r in records if isinstance(r, RunStarted))
    assert (first.lr_schedule or {})["peak"] == 8 * (second.lr_schedule or {})["peak"]
    assert second.resumed_from in range(10, 60, 10)
    assert (first.seed, second.applied_once) == (7, (second.rollback,))
    assert second.seed != first.seed
    last = [r for r in records if isinstance(r, Sample) and r.attempt == second.attempt][-1]
    assert last.loss < 2.6
    assert [r.reason for r in records if isinstance(r, RunFinished) and r.attempt == second.attempt] == ["finished"]
    (audited,) = (e for e in events if e["event"] == "start_audited" and e["attempt"] == second.attempt)
    assert {c["what"]: c["answer"] for c in audited["checks"]}["state"] == "confirmed"
