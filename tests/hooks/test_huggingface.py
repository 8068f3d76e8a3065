"""The callback where Trainer is at its most peculiar; what it does every day is in test_examples.py."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.journal import Journals
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import RunStarted, Sample, StateSaved
from tests.hooks.torchrun import lines_of

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def uneven() -> dict[str, dict[str, Any]]:
    """{case: its line}, of 2 ranks and ZeRO 1."""
    return {line["case"]: line for line in lines_of("callback_cases.py", ranks=2)}


@pytest.mark.parametrize("case", ["uneven", "resumed"])
def test_the_loss_is_the_mean_over_the_tokens_that_count(uneven: dict[str, dict[str, Any]], case: str) -> None:
    """Over micro-batches and ranks with different numbers of them, and steps with fewer micro-batches."""
    line = uneven[case]
    assert line["journal"] == pytest.approx(line["true"], rel=1e-6)
    assert line["journal"] == pytest.approx({step: line["logged"][step] for step in line["journal"]}, rel=1e-6)


def test_what_was_fed_is_counted_in_an_epochs_short_step_too(uneven: dict[str, dict[str, Any]]) -> None:
    assert uneven["uneven"]["samples"] == [12, 20, 32, 40]
    assert uneven["resumed"]["samples"] == [52, 60]


def test_trainer_bringing_callbacks_back_leaves_this_one_alone(uneven: dict[str, dict[str, Any]]) -> None:
    assert uneven["resumed"]["starts"] == [[4, 40 * 16]]
    assert uneven["uneven"]["said"] == uneven["resumed"]["said"] == []


def test_a_callback_in_which_everything_goes_wrong_changes_no_loss_and_says_each_thing_once(
    uneven: dict[str, dict[str, Any]],
) -> None:
    broken = uneven["broken"]
    assert broken["logged"] == uneven["uneven"]["logged"]
    assert broken["journal"] == {}
    about = [line.partition(" (")[0].removeprefix("sentinel could not ") for line in broken["said"]]
    for what in ("look before the step", "count what is fed", "leave word for a restart", "report the checkpoint"):
        assert about.count(what) == 1, about


def test_a_training_that_a_callback_ended_before_its_last_step_is_not_finished(
    uneven: dict[str, dict[str, Any]],
) -> None:
    assert uneven["uneven"]["ends"] == ["finished"]
    assert uneven["stopped"]["ends"] == ["stopped: at step 2 of 4"]


@pytest.mark.full
def test_a_llama_with_zero_1_in_fp32_leaves_its_band_before_its_updates_are_skipped(tmp_path: Path) -> None:
    """As the journal in tests/data/journals was recorded; what the judge makes of that: tests/judge/test_onset.py."""
    program = Path(__file__).with_name("diverging_llama.py")
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, str(program), "--output", str(tmp_path)]
    subprocess.run(command, env=environment, capture_output=True, timeout=500, check=True)
    samples = [r for r in Journals(tmp_path / "state").poll() if isinstance(r, Sample)]
    skipped = [s.global_step for s in samples if s.skipped]
    alarm = Series(Thresholds(outright_factor=math.inf), samples).alarm
    assert alarm is not None
    assert "skipped" in alarm.reason
    assert 360 <= alarm.onset_range[1] < skipped[0] - 5
    assert Series(Thresholds(), samples).alarm is not None


_WITHOUT_DEEPSPEED = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name == "deepspeed" else find(name, *more)

import time
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from trainer_hooks.huggingface import StabilityCallback


class Asks(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 1:
            Path("state/SAVE").write_text("{}")
            time.sleep(3)  # the files are looked at every second


class Line(torch.nn.Module):
    main_input_name = "x"
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(1, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.w(x) - labels).square().mean()}

data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
arguments = TrainingArguments("out", use_cpu=True, max_steps=3, report_to="none", disable_tqdm=True, save_strategy="no")
trainer = Trainer(model=Line(), args=arguments, train_dataset=data)
callback = StabilityCallback(trainer, state_dir="state")
trainer.add_callback(callback)
trainer.add_callback(Asks())
trainer.train()
assert trainer.state.global_step == 3
assert [path.name for path in Path("out").glob("checkpoint-*")] == ["checkpoint-2"]
assert callback.errors == 0, callback.errors
"""


def test_one_process_without_deepspeed_is_measured_though_its_inputs_are_no_tokens(tmp_path: Path) -> None:
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DEEPSPEED],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    started, *rest = list(Journals(tmp_path / "state").poll())
    assert isinstance(started, RunStarted)
    assert {"lr", "clip_grad", "seed"} < set(started.applies or ())
    samples = [r for r in rest if isinstance(r, Sample)]
    assert [(s.global_step, s.consumed_samples, s.consumed_tokens) for s in samples] == [
        (1, 8, 8),
        (2, 16, 16),
        (3, 24, 24),
    ]
    assert None not in [value for s in samples for value in (s.grad_norm, s.adam_variance_l1, s.adam_variance_max)]
    (saved,) = (r for r in rest if isinstance(r, StateSaved))
    assert (saved.global_step, saved.adam_step, saved.adam_step_least) == (2, 2, 2)
    assert saved.rank_variance_l1 == (saved.adam_variance_l1,) == (samples[1].adam_variance_l1,)
    assert sum(saved.layer_variance_l1) == pytest.approx(saved.adam_variance_l1)
    assert "sentinel could not" not in ran.stderr
