"""`sentinel replay --explain` and `--loss`: what was read from which names, and how many lines were what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.reading import SAMPLES
from tests.support.called import Sentinel


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Sentinel:
    return Sentinel(monkeypatch, capsys, ("replay",))


def explained(replay: Sentinel, *words: object) -> Any:
    (document,) = json.loads(replay(*words, "--explain", "--json").out)
    return document


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("megatron_lm_new", ("iteration", "lm loss", "learning rate", "grad norm")),
        ("fairseq_train_inner", ("num_updates", "loss", "lr", "gnorm")),
        ("hf_trainer_dict", ("(counted)", "loss", "learning_rate", "grad_norm")),
        ("olmo", ("step", "train/CrossEntropyLoss", None, "optim/total_grad_norm")),
        ("nanogpt_generic", ("iter", "loss", None, None)),
        ("gnmt", ("N/N]\tTime N.N", "Loss/tok", "LR", None)),
        ("dion_jsonl", ("step", "train/loss", None, "train/grad_norm")),
    ],
)
def test_each_field_is_named_with_the_words_that_it_was_read_from(
    replay: Sentinel, name: str, names: tuple[str | None, ...]
) -> None:
    document = explained(replay, SAMPLES / f"{name}.log")
    assert tuple(document["names"].get(each) for each in ("step", "loss", "lr", "grad_norm")) == names


def test_lines_are_counted_by_what_they_were(replay: Sentinel, tmp_path: Path) -> None:
    lines = [f"Step: {i} | loss: {3 - i / 100} | lr: 0.{i}" for i in range(1, 11)]
    lines += ["Step: 10 | loss: 2.9 | lr: 0.10", "Validation at step 10: loss: 3.5", "Step: 11.. loss: abc"]
    lines += [f"inner: batch {i}/5 batch_loss: 2.5" for i in range(1, 4)]
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    document = explained(replay, tmp_path / "a.log")
    assert document["counts"] == {
        "steps": 11, "evaluations": 1, "repeated": 1, "left_out": 3, "unreadable": 0, "other": 1,
    }  # fmt: skip
    text = replay("--explain", tmp_path / "a.log").out
    assert (
        "  step from 'Step'\n  loss from 'loss'\n  lr from 'lr'\n  lines: 11 steps, 1 evaluations, 1 repeated" in text
    )
    assert "names" not in json.loads(replay("--json", tmp_path / "a.log").out)[0]


def test_rows_of_a_table_are_counted_and_its_columns_named(replay: Sentinel, tmp_path: Path) -> None:
    rows = [*(f"{i},{3 - i / 100},," for i in range(1, 11)), "10,,3.5,", "11,2.9,,0.5"]
    (tmp_path / "a.csv").write_text("\n".join(["iter,train_loss,val_loss,gnorm", *rows]) + "\n")
    document = explained(replay, tmp_path / "a.csv")
    assert document["names"] == {
        "step": "iter", "loss": "train_loss", "validation_loss": "val_loss", "grad_norm": "gnorm",
    }  # fmt: skip
    assert document["counts"] == {"rows": 12, "evaluations": 1, "repeated": 1, "unreadable": 0}


def test_loss_is_a_short_form_of_column(replay: Sentinel, tmp_path: Path) -> None:
    lines = [f"step {i} | train_loss {3 - i / 100} | lm_loss {2 - i / 100}" for i in range(1, 11)]
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    document = explained(replay, "--loss", "lm_loss", tmp_path / "a.log")
    assert (document["samples"], document["names"]["loss"]) == (10, "lm_loss")


def test_of_several_logs_one_that_is_refused_hides_no_other(replay: Sentinel, tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("no step\n")
    good = [str(SAMPLES / f"{name}.log") for name in ("nanogpt_generic", "olmo")]
    shown = replay(good[0], tmp_path / "empty.log", good[1])
    assert [name in shown.out for name in good] == [True, True]
    assert "empty.log" in shown.err
    assert shown.code == 2
