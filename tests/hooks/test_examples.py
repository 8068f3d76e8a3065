"""Each example, run as its page says, and the journal that it leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.checkpoints.layouts import recognise
from sentinel.vocabulary.overrides import CHANGES
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, Sample, StateLoaded, StateSaved, Validation
from tests.hooks.trainer import losses, records, starts
from tests.support.forked_programs import forked

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(example: str, output: Path, *more: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    env, file = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT)), str(EXAMPLES / example)
    return forked(file, "--output", str(output), *more, ranks=ranks, cwd=output.parent, env=env)


def ran(example: str, output: Path, *more: str, ranks: int = 1) -> str:
    done = run(example, output, *more, ranks=ranks)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-4000:]}"
    return done.stdout


def samples(output: Path, attempt: int) -> list[Sample]:
    return [r for r in records(output) if isinstance(r, Sample) and r.attempt == attempt]


def printed_losses(stdout: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", stdout, re.MULTILINE)}


@pytest.mark.parametrize("sharding", ["--ddp", "--fsdp"])
def test_a_plain_loop_goes_on_from_its_checkpoint_with_the_state_that_was_saved(tmp_path: Path, sharding: str) -> None:
    output = tmp_path / "out"
    for steps in ("3", "5"):
        ran("plain_pytorch.py", output, "--steps", steps, "--save-every", "2", "--accumulate", "2", sharding, ranks=2)
    first, second = starts(output)
    assert (first.resumed_from, second.resumed_from, second.parent_attempt) == (None, 2, 1)
    assert {"lr", "seed", "clip_grad", "reset_moments"} <= set(second.applies or ())
    assert [s.global_step for s in samples(output, 2)] == [3, 4, 5]
    assert next(s.batch_digest for s in samples(output, 2)) == samples(output, 1)[2].batch_digest
    saved = next(r for r in records(output) if isinstance(r, StateSaved))
    loaded = next(r for r in records(output) if isinstance(r, StateLoaded))
    assert (loaded.adam_variance_l1, loaded.adam_step) == (saved.adam_variance_l1, 2)
    assert loaded.layer_param_norm == saved.layer_param_norm


@pytest.mark.parametrize(("ranks", "zero"), [(1, 0), (2, 2)])
def test_three_lines_put_every_step_into_the_journal(tmp_path: Path, ranks: int, zero: int) -> None:
    output = tmp_path / "out"
    first = ran(
        "deepspeed_three_lines.py", output, "--steps", "3", "--zero", str(zero), "--accumulate", "2", ranks=ranks
    )
    assert list(printed_losses(first)) == [1, 2, 3]
    assert losses(output) == pytest.approx(printed_losses(first), rel=1e-6)
    assert all(s.adam_variance_l1 and s.adam_variance_max and s.grad_norm for s in samples(output, 1))
    assert [r.reason for r in records(output) if isinstance(r, RunFinished)] == ["finished"]

    second = ran(
        "deepspeed_three_lines.py", output, "--steps", "5", "--zero", str(zero), "--accumulate", "2", ranks=ranks
    )
    assert {s.global_step: s.loss for s in samples(output, 2)} == pytest.approx(printed_losses(second), rel=1e-6)
    told = starts(output)[1]
    assert (told.attempt, told.resumed_from, told.parent_attempt, told.world_size) == (2, 3, 1, ranks)


def test_three_lines_are_three(tmp_path: Path) -> None:
    lines = (EXAMPLES / "deepspeed_three_lines.py").read_text().splitlines()
    ours = [line for line in lines if re.search(r"\btrainer_hooks\b|\bhook\b", line)]
    assert [line.rpartition("# ")[2] for line in ours] == ["1", "2", "3"]


def shortened(stdout: str) -> list[tuple[int, int, int, float]]:
    """(step, seqlen, consumed tokens, loss) of each step."""
    lines = re.findall(r"^step (\d+) seqlen (\d+) tokens (\d+) loss (\S+)$", stdout, re.MULTILINE)
    return [(int(step), int(seqlen), int(tokens), float(loss)) for step, seqlen, tokens, loss in lines]


@pytest.mark.parametrize(
    ("ranks", "zero", "shorten"),
    [pytest.param(1, 0, "truncate", marks=pytest.mark.soak), pytest.param(2, 2, "reshape", marks=pytest.mark.full)],
)
def test_a_warmup_begun_in_mid_run_goes_on_over_a_restart_as_if_there_was_none(
    tmp_path: Path, ranks: int, zero: int, shorten: str
) -> None:
    output = tmp_path / "out"
    arguments = ("--zero", str(zero), "--accumulate", "2", "--shorten", shorten)
    first = shortened(ran("slw_three_lines.py", output, "--steps", "2", *arguments, ranks=ranks))
    batch = 2 * 8 * ranks
    assert [step[:3] for step in first] == [(1, 64, 64 * batch), (2, 64, 128 * batch)]

    shutil.copytree(output, tmp_path / "whole" / "out")
    warmup = (*arguments, "--warmup-steps", "4", "--anchor", "2")
    whole = shortened(ran("slw_three_lines.py", tmp_path / "whole/out", "--steps", "7", *warmup, ranks=ranks))
    assert [step[1] for step in whole] == [16, 32, 48, 64, 64]
    trained = 2 * 64
    for _, seqlen, tokens, _ in whole:
        trained += seqlen if shorten == "truncate" else 64 // seqlen * seqlen
        assert tokens == trained * batch

    parts = shortened(ran("slw_three_lines.py", output, "--steps", "4", *warmup, ranks=ranks))
    parts += shortened(ran("slw_three_lines.py", output, "--steps", "7", *warmup, ranks=ranks))
    assert parts == whole


def test_the_three_lines_of_a_warmup_are_three() -> None:
    lines = (EXAMPLES / "slw_three_lines.py").read_text().splitlines()
    ours = [line for line in lines if re.search(r"\bSeqlenWarmup\(|\bwarmup\(|\bwarmup\.(?!consumed)", line)]
    assert [line.rpartition("# ")[2] for line in ours] == ["1", "checkpoint", "2", "3", "checkpoint"]


def trainer_state(output: Path, step: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((output / f"checkpoints/checkpoint-{step}/trainer_state.json").read_text())
    return told


def logged(output: Path, step: int, key: str) -> dict[int, float]:
    """What Trainer itself has logged up to the checkpoint of that step."""
    return {entry["step"]: entry[key] for entry in trainer_state(output, step)["log_history"] if key in entry}


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 for 6 steps of two micro-batches, a checkpoint after 4 and 6. To be copied, not changed."""
    output = tmp_path_factory.mktemp("gpt2") / "out"
    ran("huggingface_gpt2.py", output, "--steps", "6")
    return output


@pytest.fixture
def gpt2(six_steps: Path, tmp_path: Path) -> Path:
    return shutil.copytree(six_steps, tmp_path / "out")


def test_the_callbacks_losses_are_those_that_trainer_logs(gpt2: Path) -> None:
    """Trainer divides a micro-batch's loss by their number before DeepSpeed sees it: their sum is the step's."""
    assert list(losses(gpt2)) == [1, 2, 3, 4, 5, 6]
    assert losses(gpt2) == pytest.approx(logged(gpt2, 6, "loss"), rel=1e-6)
    told = samples(gpt2, 1)
    assert {s.global_step: s.lr for s in told} == pytest.approx(logged(gpt2, 6, "learning_rate"))
    assert all(s.adam_variance_l1 and s.adam_variance_max and s.grad_norm for s in told)
    assert [s.consumed_tokens for s in told] == [512 * step for step in range(1, 7)]  # 2 x 4 samples of 64
    assert [(s.seqlen, s.global_batch_samples, s.lr_warmup_steps) for s in told] == [(64, 8, 5)] * 6


def test_the_callback_tells_of_evaluations_checkpoints_and_the_end(gpt2: Path) -> None:
    told = records(gpt2)
    assert {v.global_step: v.loss for v in told if isinstance(v, Validation)} == logged(gpt2, 6, "eval_loss")
    saved = [r for r in told if isinstance(r, CheckpointSaved)]
    assert [(r.tag, r.consumed_samples) for r in saved] == [("checkpoint-4", 32), ("checkpoint-6", 48)]
    assert all((gpt2 / "checkpoints" / r.tag).is_dir() and recognise(r.tag) for r in saved)
    start = starts(gpt2)[0]
    assert (start.seed, start.total_steps, start.checkpoint_interval_steps, start.full_seqlen) == (7, 6, 4, 64)
    assert start.trainer == "Hugging Face's Trainer (StabilityCallback)"
    never = {"shorten", "batch_size", "random_ltd", "curriculum", "total_tokens", "free"}
    not_here = {"loss_scale", "weight_decay"}  # only fp16 has one; no group of the example has the other
    assert set(start.applies or ()) == set(CHANGES) - never - not_here
    assert isinstance(told[-1], RunFinished)
    assert told[-1].reason == "finished"


def test_a_resume_goes_on_counting_and_keeps_the_smallest_loss(gpt2: Path) -> None:
    ran("huggingface_gpt2.py", gpt2, "--steps", "8", "--resume")
    start = starts(gpt2)[1]
    assert (start.attempt, start.parent_attempt, start.resumed_from) == (2, 1, 6)
    assert (start.first_sample_index, start.consumed_tokens) == (48, 6 * 512)
    seventh, eighth = samples(gpt2, 2)
    assert seventh.loss_ratio == pytest.approx(seventh.loss / min(s.loss for s in samples(gpt2, 1)))
    assert (eighth.global_step, eighth.consumed_samples, eighth.consumed_tokens) == (8, 64, 8 * 512)
    assert losses(gpt2) == pytest.approx(logged(gpt2, 8, "loss"), rel=1e-6)


def test_no_heartbeat_is_a_file_of_a_checkpoint(gpt2: Path) -> None:
    """Trainer has DeepSpeed save into `checkpoint-N`: a file renewed there denies that the trainer is parked."""
    checkpoints = gpt2 / "checkpoints"
    beating = [
        path.relative_to(checkpoints).parts[0] for path in checkpoints.rglob("*.json") if "-heartbeats" in str(path)
    ]
    assert beating == [".sentinel-heartbeats"]


def test_a_run_that_began_without_the_callback_goes_on_with_it(gpt2: Path) -> None:
    path = gpt2 / "checkpoints/checkpoint-6/trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["sentinel"]
    path.write_text(json.dumps(state))
    ran("huggingface_gpt2.py", gpt2, "--steps", "8", "--resume")
    assert (starts(gpt2)[1].resumed_from, starts(gpt2)[1].consumed_tokens) == (6, None)
    seventh = samples(gpt2, 2)[0]
    assert (seventh.global_step, seventh.consumed_tokens, seventh.loss_ratio) == (7, None, 1.0)
    assert "sentinel" in trainer_state(gpt2, 8)["stateful_callbacks"]


def test_two_ranks_under_zero_are_one_run(tmp_path: Path) -> None:
    output = tmp_path / "out"
    ran("huggingface_gpt2.py", output, "--steps", "4", "--zero", "2", ranks=2)
    assert losses(output) == pytest.approx(logged(output, 4, "loss"), rel=1e-6)
    told = samples(output, 1)
    assert {s.global_step: s.grad_norm for s in told} == pytest.approx(logged(output, 4, "grad_norm"), rel=1e-6)
    assert (told[-1].global_batch_samples, told[-1].consumed_tokens) == (16, 4 * 16 * 64)
    assert len(starts(output)) == 1


def test_a_state_folder_that_cannot_be_made_costs_the_training_nothing(six_steps: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "state").write_text("in the way")
    ran("huggingface_gpt2.py", output, "--steps", "6")
    assert logged(output, 6, "loss") == logged(six_steps, 6, "loss")
    weights = "checkpoints/checkpoint-6/model.safetensors"
    assert (output / weights).read_bytes() == (six_steps / weights).read_bytes()


def test_an_error_that_ends_the_training_is_the_reason_of_its_end(tmp_path: Path) -> None:
    output = tmp_path / "out"
    (output / "checkpoints").mkdir(parents=True)
    (output / "checkpoints" / "checkpoint-4").write_text("in the way")
    failed = run("huggingface_gpt2.py", output, "--steps", "6")
    assert failed.returncode == 1, failed.stderr[-2000:]
    last = records(output)[-1]
    assert isinstance(last, RunFinished)
    assert last.reason.startswith("error: FileExistsError: "), last.reason
    assert last.global_step == 4
