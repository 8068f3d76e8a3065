"""The benchmark of random-LTD: its document, and what it compares."""

from __future__ import annotations

import torch

from benchmarks import random_ltd
from trainer_hooks.gpt.data import load_corpus
from trainer_hooks.gpt.model import Shape


def test_each_share_has_a_row_and_with_everything_kept_there_is_nothing_to_save() -> None:
    rows = random_ltd.costs(Shape(layers=3, width=16, heads=2, seqlen=32), 1, torch.device("cpu"))
    assert [row["kept_share"] for row in rows] == list(random_ltd.SHARES)
    assert rows[-1]["bound"] == 1.0
    assert (rows[-1]["draw_ms"], rows[-1]["move_ms"]) == (0.0, 0.0)
    assert all(row["step_ms"] > 0 for row in rows)


def test_trainings_are_compared_at_the_same_effective_tokens() -> None:
    corpus = load_corpus([], seqlen=random_ltd.LEARNING.seqlen, vocabulary=None, validation_share=0.02)
    without, longer, shorter = random_ltd.learning(3, 0, corpus)
    step = random_ltd.LEARNING_BATCH * random_ltd.LEARNING.seqlen
    assert without["effective_tokens"] == without["tokens"] == 3 * step
    assert longer["effective_tokens"] >= without["tokens"]
    assert longer["effective_tokens"] - without["tokens"] < step
    assert shorter["tokens"] == without["tokens"]
    assert shorter["effective_tokens"] < without["tokens"]
