"""Megatron-DeepSpeed's side of the hook, in a loop of its order on a real pipeline, and the patches that call it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, Sample, Validation
from tests.hooks.trainer import losses, records, starts
from trainer_hooks.megatron import MegatronHook

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PATCHES = sorted((ROOT / "examples" / "megatron").glob("*.patch"))


def loop(folder: Path, *more: str, fails: bool = False) -> dict[str, Any]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    ran = subprocess.run(
        [*torchrun, str(Path(__file__).with_name("megatron_loop.py")), str(folder), *more],
        env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert bool(ran.returncode) == fails, ran.stderr[-4000:]
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"case"')]
    return told[0] if told else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("megatron")


@pytest.fixture(scope="module")
def two_attempts(folder: Path) -> list[dict[str, Any]]:
    """What the loop saw: 4 steps, and 2 more from their checkpoint."""
    return [loop(folder, "4"), loop(folder, "6")]


def test_the_journal_has_train_batchs_losses_and_evaluates(folder: Path, two_attempts: list[dict[str, Any]]) -> None:
    seen = {int(step): loss for told in two_attempts for step, loss in told["losses"].items()}
    assert losses(folder) == pytest.approx(seen, rel=1e-6)
    validations = {int(step): loss for told in two_attempts for step, loss in told["validations"].items()}
    told = [r for r in records(folder) if isinstance(r, Validation)]
    assert [v.global_step for v in told] == [2, 4, 6]  # of two sets at each, the first
    assert {v.global_step: v.loss for v in told} == pytest.approx(validations, rel=1e-6)


def test_a_step_counts_the_samples_and_tokens_that_args_will_have_after_it(
    folder: Path, two_attempts: list[dict[str, Any]]
) -> None:
    samples = [r for r in records(folder) if isinstance(r, Sample)]
    assert [(s.consumed_samples, s.consumed_tokens, s.seqlen) for s in samples] == [
        (4 * step, 16 * step, 4) for step in range(1, 7)
    ]
    saved = [r for r in records(folder) if isinstance(r, CheckpointSaved)]
    assert [(r.tag, r.consumed_tokens) for r in saved] == [(f"global_step{n}", 16 * n) for n in (2, 4, 6)]


def test_a_restart_has_its_parent_and_the_smallest_loss_from_the_client_state(
    folder: Path, two_attempts: list[dict[str, Any]]
) -> None:
    first, second = starts(folder)
    assert (first.resumed_from, first.parent_attempt, first.seed) == (None, None, 3)
    assert (second.resumed_from, second.parent_attempt, second.first_sample_index) == (4, 1, 16)
    samples = {r.global_step: r for r in records(folder) if isinstance(r, Sample)}
    before = min(samples[step].loss for step in range(1, 5))
    assert samples[5].loss_ratio == pytest.approx(samples[5].loss / before)


@pytest.mark.parametrize(
    ("words", "fails", "reason"),
    [
        (("2", "break"), True, "error: RuntimeError: a node was lost"),
        (("4", "early"), False, "stopped: at 2 of 4 steps"),
        (("2", "early"), False, "finished"),
    ],
)
def test_only_the_planned_end_is_finished(tmp_path: Path, words: tuple[str, ...], fails: bool, reason: str) -> None:
    loop(tmp_path, *words, fails=fails)
    last = records(tmp_path)[-1]
    assert isinstance(last, RunFinished)
    assert last.reason == reason


@pytest.mark.parametrize("patch", PATCHES, ids=lambda p: p.stem)
def test_a_patch_calls_what_there_is_and_holds_our_lines_alone(patch: Path) -> None:
    lines = patch.read_text().splitlines()
    assert all(line.startswith(("diff ", "--- ", "+++ ", "@@ ", "+")) for line in lines)
    assert all(line.endswith("@@") for line in lines if line.startswith("@@ "))
    calls = re.findall(r"_SENTINEL\.(\w+)\(", patch.read_text())
    assert sorted(calls) == ["evaluated", "finished", "started"]
    assert all(hasattr(MegatronHook, name) for name in calls)
    page = (ROOT / "docs" / "MEGATRON.md").read_text()
    assert patch.name in page
    assert all(line.strip("+ ") in page for line in lines if "attach_to_megatron" in line)
