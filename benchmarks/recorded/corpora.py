"""Texts to train on, the same on every machine: a made-up language, and Python's standard library as bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recorded.recipe import Recipe
from sentinel.demo.configuration import VOCABULARY, made_up
from trainer_hooks.gpt.data import load_corpus

__all__ = ["NAMES", "VOCABULARY", "Tokens", "corpus", "samples", "validation"]

NAMES = ("zipf", "code", "dense")
_VALIDATION = 20_000
"""Tokens at the end of each corpus that are never trained on."""

Tokens = NDArray[np.int64]


@cache
def corpus(name: str) -> Tokens:
    """`code` is Python's own library; `zipf` and `dense` are languages of words, `dense` with many more of them."""
    if name == "code":
        return load_corpus([], seqlen=32, vocabulary=None, validation_share=0.01).tokens.astype(np.int64)
    return made_up(seed=1, words=300) if name == "zipf" else made_up(seed=2, words=4000)


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
