"""Texts to train on, the same on every machine: a made-up language, and Python's standard library as bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorded.recipe import Recipe
from trainer_hooks.gpt.data import load_corpus

__all__ = ["NAMES", "VOCABULARY", "Tokens", "corpus", "samples", "validation"]

VOCABULARY = 128
NAMES = ("zipf", "code", "dense")
_VALIDATION = 20_000
"""Tokens at the end of each corpus that are never trained on."""

Tokens = NDArray[np.int64]


@cache
def corpus(name: str) -> Tokens:
    """`code` is Python's own library; `zipf` and `dense` are languages of words, `dense` with many more of them."""
    if name == "code":
        return load_corpus([], seqlen=32, vocabulary=None, validation_share=0.01).tokens.astype(np.int64)
    return _language(seed=1, words=300) if name == "zipf" else _language(seed=2, words=4000)


def _language(*, seed: int, words: int, length: int = 1_000_000) -> Tokens:
    """Words of two to six letters, by Zipf's law, each state of a hidden chain of 12 with an order of its own."""
    rng = np.random.default_rng(seed)
    lexicon = [np.append(rng.integers(1, VOCABULARY, rng.integers(2, 7)), 0) for _ in range(words)]
    chance = 1 / np.arange(1, words + 1)
    chance /= chance.sum()
    orders = [rng.permutation(words) for _ in range(12)]
    count = length // 4
    ranks = rng.choice(words, count, p=chance)
    turns = rng.random(count) < 0.1
    states = np.cumsum(np.where(turns, rng.integers(1, 12, count), 0)) % 12
    said = [lexicon[orders[s][r]] for s, r in zip(states, ranks, strict=True)]
    return np.concatenate(said)[:length].astype(np.int64)


def samples(recipe: Recipe, name: str, step: int, seed: int, batch: int, seqlen: int) -> Tokens:
    """(batch, seqlen + 1) tokens of this step: a function of its arguments, so that siblings see the same data."""
    rng = np.random.default_rng((recipe.seed, seed, step))
    if recipe.epoch_samples:
        starts = _in_epochs(recipe, step, seed, batch)
        return _windows(corpus(name), starts * recipe.seqlen, seqlen)
    if not recipe.mix:
        return _drawn(rng, name, batch, seqlen)
    shares = rng.dirichlet([recipe.mix] * len(NAMES))
    chosen = rng.choice(len(NAMES), batch, p=shares)
    return np.concatenate([_drawn(rng, NAMES[c], 1, seqlen) for c in np.sort(chosen)])


def validation(name: str, seqlen: int) -> Tokens:
    """(64, seqlen + 1) tokens that no run is trained on."""
    text = corpus(name)
    return _windows(text, len(text) - _VALIDATION + np.arange(64) * (_VALIDATION // 65), seqlen)


def _drawn(rng: np.random.Generator, name: str, batch: int, seqlen: int) -> Tokens:
    text = corpus(name)
    return _windows(text, rng.integers(0, len(text) - _VALIDATION - seqlen - 1, batch), seqlen)


def _in_epochs(recipe: Recipe, step: int, seed: int, batch: int) -> NDArray[Any]:
    steps_per_epoch = recipe.epoch_samples // batch
    epoch, within = divmod(step - 1, steps_per_epoch)
    order = np.random.default_rng((recipe.seed, seed, epoch)).permutation(recipe.epoch_samples)
    return order[within * batch : (within + 1) * batch]


def _windows(text: Tokens, starts: NDArray[Any], seqlen: int) -> Tokens:
    return text[starts[:, None] + np.arange(seqlen + 1)]
