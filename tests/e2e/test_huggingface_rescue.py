"""A Llama or Qwen that diverges by itself under Hugging Face's Trainer, rescued by `sentinel watch` in mode act."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.local import LocalJobs
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.vocabulary.numbers import dump_json
from tests.adapters.pagers import free_port
from tests.support.rescued_runs import CONFIGURATION, PROGRAM, ROOT, assert_rescued

pytestmark = pytest.mark.full


TWO_RANKS = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port={port}")
WAYS = {
    "llama, ZeRO 1": ((), ()),
    "qwen2, ZeRO 2, two ranks": (TWO_RANKS, ("--model", "qwen2", "--zero", "2")),
    "llama, ZeRO 3, two ranks": (TWO_RANKS, ("--zero", "3")),
    "qwen2, DDP, two ranks": (TWO_RANKS, ("--model", "qwen2", "--no-deepspeed")),
    "llama, one process without DeepSpeed": ((), ("--no-deepspeed",)),
}
FIRST = ("qwen2, ZeRO 2, two ranks", "llama, one process without DeepSpeed")  # the others in the soak tier


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "state").mkdir()
    launcher, words = WAYS[getattr(request, "param", "llama, ZeRO 1")]
    port = [word.format(port=free_port()) for word in launcher]
    command = [sys.executable, *port, str(PROGRAM), str(tmp_path), *words]
    (tmp_path / "llama.toml").write_text(CONFIGURATION.format(command=dump_json(command)))
    for name, value in {
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }.items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    LocalJobs(tmp_path / "state").stop(grace_s=20)


def watched(folder: Path, within_s: float = 400.0, kills: Sequence[float] = ()) -> Incident:
    """From the first step to the end of the watch, which is killed after each of so many seconds and started again."""
    state = folder / "state"
    command = tomllib.loads((folder / "llama.toml").read_text())["launcher"]["command"]
    jobs = LocalJobs(state)
    jobs.start(command, cwd=folder, extra_env={}, log_path=state / "job.log")
    line = [sys.executable, "-m", "sentinel", "watch", "--run", str(folder / "llama.toml")]
    for number, after_s in enumerate(kills):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(line, capture_output=True, timeout=after_s, check=False)  # which kills it
            assert number > len(kills) // 2, "the watch ended by itself"
    ran = subprocess.run(line, capture_output=True, text=True, timeout=within_s, check=False)
    jobs.stop(grace_s=20)
    told = ran.stdout + ran.stderr
    assert ran.returncode == 0, f"{told[-3000:]}\n{(state / 'job.log').read_text()[-2000:]}"
    (incident,) = fold(IncidentLog(state / "incidents.jsonl").read())
    return incident


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "run", [pytest.param(way, marks=() if way in FIRST else pytest.mark.soak) for way in WAYS], indirect=True
)
def test_a_model_that_diverges_by_itself_is_rolled_back_restarted_with_a_lower_lr_and_recovers(run: Path) -> None:
    assert_rescued(run, watched(run))


@pytest.mark.timeout(600)
def test_a_watch_that_is_killed_ten_times_at_random_comes_to_the_same_end(run: Path) -> None:
    moments = random.Random(17)
    assert_rescued(run, watched(run, kills=[moments.uniform(0.8, 3.0) for _ in range(10)]))
