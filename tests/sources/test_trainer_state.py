"""trainer_state.json, as Hugging Face's trainer writes it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sentinel.sources.opening import open_columns
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, Validation
from tests.sources.readings import NAN, only, told

HISTORY: list[dict[str, Any]] = [
    {"epoch": 0.25, "grad_norm": 1.5, "learning_rate": 5e-05, "loss": 2.5, "step": 10},
    {"epoch": 0.5, "grad_norm": math.nan, "learning_rate": 4e-05, "loss": 0.0, "step": 20},
    {"epoch": 0.5, "eval_loss": 2.75, "eval_runtime": 1.0, "step": 20},
    {"epoch": 0.75, "grad_norm": 1.0, "learning_rate": 3e-05, "loss": "x", "step": 30},
    {"epoch": 1.0, "step": 40, "train_loss": 1.9, "train_runtime": 100.0, "total_flos": 1e18},
]
TOLD = [
    {"attempt": 1, "step": 10, "loss": 2.5, "grad_norm": 1.5, "lr": 5e-05, "epoch": 0.25},
    {"attempt": 1, "step": 20, "loss": NAN, "grad_norm": NAN, "lr": 4e-05, "epoch": 0.5},
]


def state(path: Path, history: list[dict[str, Any]] = HISTORY) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"best_metric": None, "global_step": 40, "log_history": history}, indent=2) + "\n")
    return path


def test_the_log_history_is_read_with_nan_where_the_trainer_shows_zero(tmp_path: Path) -> None:
    source = only(state(tmp_path / "trainer_state.json"))
    assert told(source) == TOLD
    assert (source.format, source.samples, source.unreadable) == ("huggingface_trainer_state", 2, 1)
    assert source.first_unreadable == [(4, "loss should be a number, not 'x'")]
    validation, finished = sorted(source.others, key=lambda one: type(one).__name__, reverse=True)
    assert isinstance(validation, Validation)
    assert (validation.global_step, validation.loss) == (20, 2.75)
    assert isinstance(finished, RunFinished)
    assert finished.global_step == 40


def test_a_folder_of_checkpoints_is_read_from_its_newest(tmp_path: Path) -> None:
    for step in (20, 100):
        state(tmp_path / f"checkpoint-{step}" / "trainer_state.json", HISTORY[: step // 10])
    (tmp_path / "checkpoint-300").mkdir()
    source = only(tmp_path)
    assert source.path == tmp_path / "checkpoint-100" / "trainer_state.json"
    assert told(source) == TOLD
    saved = [(one.global_step, one.tag) for one in source.others if isinstance(one, CheckpointSaved)]
    assert saved == [(20, "checkpoint-20"), (100, "checkpoint-100"), (300, "checkpoint-300")]
    assert told(only(tmp_path / "checkpoint-20")) == TOLD


def test_it_is_known_by_its_content_under_another_name(tmp_path: Path) -> None:
    assert told(only(state(tmp_path / "kept.json"))) == TOLD
    (tmp_path / "one-line.json").write_text(json.dumps({"log_history": HISTORY}))
    assert told(only(tmp_path / "one-line.json")) == TOLD


@pytest.mark.parametrize("text", ["", "{", "[]", '{"log_history": 5}', '{"a": 1}'])
def test_one_that_is_torn_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="can't be read as Hugging Face's trainer state"):
        open_columns(path, {})


def test_one_without_a_loss_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it has: eval_accuracy, step"):
        open_columns(state(tmp_path / "trainer_state.json", [{"eval_accuracy": 1.0, "step": 1}]), {})
