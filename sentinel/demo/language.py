"""A made-up language, the same everywhere: a small GPT with LayerNorms diverges on it, and not on Python's library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 128


def made_up(*, seed: int, words: int, length: int = 1_000_000) -> NDArray[np.int64]:
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
