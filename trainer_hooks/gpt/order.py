"""The order of the data: a seeded permutation, addressed by consumed_samples.

The same seeds and position give the same samples on any number of ranks, after any restart. A reseed permutes only what
is not yet consumed of its epoch; later epochs follow the new seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError

__all__ = ["DataOrder"]

Reseed = tuple[int, int]
"""(consumed_samples at which it took effect, seed)."""


class DataOrder:
    """Which sample stands at which position of the run."""

    def __init__(self, samples: int, seed: int, reseeds: Sequence[Reseed] = ()) -> None:
        if samples < 1:
            raise DataError("there is no whole training sample")
        self._samples = samples
        self.reseeds: tuple[Reseed, ...] = ((0, seed),) if not reseeds else tuple((int(p), int(s)) for p, s in reseeds)
        """The seeds so far, from which position on; travels in the checkpoint's client state."""

    @property
    def seed(self) -> int:
        """The seed in force at the end of `reseeds`."""
        return self.reseeds[-1][1]

    def reseed(self, position: int, seed: int) -> None:
        """Permutes what comes at and after the position anew; what came before stays as it was."""
        if position < self.reseeds[-1][0]:
            raise DataError(f"a reseed at sample {position} would change what was consumed by {self.reseeds[-1][0]}")
        self.reseeds = (*(r for r in self.reseeds if r[0] != position), (position, seed))

    def indices(self, position: int, count: int) -> NDArray[np.int64]:
        """The `count` sample numbers from that position on."""
        wanted = np.arange(position, position + count)
        epochs = wanted // self._samples
        parts = [self._epoch(int(e))[wanted[epochs == e] % self._samples] for e in np.unique(epochs)]
        return np.concatenate(parts)

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        begin, end = epoch * self._samples, (epoch + 1) * self._samples
        before = [r for r in self.reseeds if r[0] <= begin]
        within = [(at - begin, seed) for at, seed in self.reseeds if begin < at < end]
        return _permuted(self._samples, epoch, before[-1][1], tuple(within))


@lru_cache(maxsize=2)
def _permuted(samples: int, epoch: int, seed: int, reseeds: tuple[Reseed, ...]) -> NDArray[np.int64]:
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    for at, new in reseeds:
        order[at:] = np.random.default_rng([new, epoch, at]).permutation(order[at:])
    return order
