"""A Llama or Qwen that diverges by itself under Hugging Face's Trainer, rescued by `sentinel watch` in mode act."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.adapters.local import LocalJobs
from sentinel.vocabulary.numbers import dump_json
from tests.adapters.pagers import free_port
from tests.support.rescued_runs import CONFIGURATION, PROGRAM, ROOT, assert_rescued, watched

pytestmark = pytest.mark.full


TWO_RANKS = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port={port}")
WAYS = {
    "llama, ZeRO 1": ((), ()),
    "qwen2, ZeRO 2, two ranks": (TWO_RANKS, ("--model", "qwen2", "--zero", "2")),
    "llama, ZeRO 3, two ranks": (TWO_RANKS, ("--zero", "3")),
    "qwen2, DDP, two ranks": (TWO_RANKS, ("--model", "qwen2", "--no-deepspeed")),
    "llama, one process without DeepSpeed": ((), ("--no-deepspeed",)),
}
FIRST = "qwen2, ZeRO 2, two ranks"  # the others in the soak tier; one process without DeepSpeed is TRL's


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


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "run", [pytest.param(way, marks=() if way == FIRST else pytest.mark.soak) for way in WAYS], indirect=True
)
def test_a_model_that_diverges_by_itself_is_rolled_back_restarted_with_a_lower_lr_and_recovers(run: Path) -> None:
    assert_rescued(run, watched(run))


@pytest.mark.timeout(600)
@pytest.mark.soak  # the reference trainer is struck in the second tier
def test_a_watch_that_is_killed_ten_times_at_random_comes_to_the_same_end(run: Path) -> None:
    moments = random.Random(17)
    assert_rescued(run, watched(run, kills=[moments.uniform(0.8, 3.0) for _ in range(10)]))
