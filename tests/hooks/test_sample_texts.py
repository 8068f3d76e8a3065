"""The text of what a run of the reference trainer consumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sentinel.vocabulary.errors import DataError
from sentinel.vocabulary.sample import RunStarted, encode
from trainer_hooks.gpt.data import load_corpus
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.gpt.texts import main, texts

MODEL = {"preset": "tiny", "seqlen": 64, "no_block_layernorm": True, "dropout": 0.0}
SETTINGS = MODEL | {"vocabulary": None, "validation_share": 0.02, "seed": 7}
FIRST = RunStarted(attempt=1, time_unix_s=0.0, seed=7, first_sample_index=0, settings=SETTINGS)
SECOND = replace(FIRST, attempt=2, parent_attempt=1, resumed_from=5, seed=8, first_sample_index=80)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus"
    path.mkdir()
    (path / "numbers.txt").write_text("".join(f"the number {n} comes after {n - 1}\n" for n in range(2000)))
    return path


def test_the_texts_are_those_of_the_order_that_the_trainer_reseeds(corpus: Path) -> None:
    rows = load_corpus([corpus], seqlen=64, vocabulary=None, validation_share=0.02)
    order = DataOrder(rows.training_samples, 7)
    order.reseed(80, 8)
    wanted = [bytes(row.tolist()).decode() for row in rows.training(order.indices(72, 16))]
    assert texts([FIRST, SECOND], [corpus], 72, 88) == list(zip(range(72, 88), wanted, strict=True))
    assert not np.array_equal(order.indices(80, 8), DataOrder(rows.training_samples, 7).indices(80, 8))


def test_it_prints_what_the_page_reads(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for start in (FIRST, SECOND):
        journal = tmp_path / "attempts" / f"{start.attempt:04d}.jsonl"
        journal.parent.mkdir(exist_ok=True)
        journal.write_text(encode(start) + "\n")
    asked = [
        "--state-dir",
        str(tmp_path),
        "--attempt",
        "2",
        "--first",
        "79",
        "--after-last",
        "81",
        "--data",
        str(corpus),
    ]
    assert main(asked) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["position"] for line in lines] == [79, 80]
    assert all(len(line["text"]) == 65 for line in lines)


def test_an_order_that_the_journals_do_not_tell_is_refused(corpus: Path) -> None:
    with pytest.raises(DataError, match="skipped"):
        texts([replace(FIRST, skipped_samples=16)], [corpus], 0, 1)
