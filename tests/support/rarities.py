"""The rarity of a sample's words, computed slowly."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from trainer_hooks.data.shards import Rows


def rarities(rows: Rows) -> list[float]:
    """-Σ log p(w) of each row, p over all rows, padding left out; in Python's own arithmetic."""
    data = [[int(token) for token in row if token != rows.pad] for row in rows.tokens]
    counts = Counter(token for row in data for token in row)
    total = sum(counts.values())
    return [-math.fsum(math.log(counts[token] / total) for token in row) for row in data]


def counts(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found = np.bincount(rows.tokens.reshape(-1))
    if rows.pad is not None:
        found[rows.pad] = 0
    return found
