"""The order of the data: a seeded permutation, addressed by consumed_samples.

The same seeds and position give the same samples on any number of ranks, after any restart. A reseed permutes only what
is not yet consumed of its epoch; later epochs follow the new seed alone. What is skipped is left out of its epoch: the
samples themselves, wherever a later order puts them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError
from sentinel.vocabulary.training_settings import SkippedRange

Reseed = tuple[int, int]  # (consumed_samples at which it took effect, seed)

Draw = Callable[[int, int, int], NDArray[np.int64]]
"""(samples, seed, epoch) -> the order of a whole epoch that is drawn with that seed."""


def shuffled(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The reference trainer's."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


class Order(ABC):
    """Which sample stands at which position of the run: what every order has of seeds and of what is left out."""

    def __init__(self, seed: int, reseeds: Sequence[Reseed]) -> None:
        self.reseeds: tuple[Reseed, ...] = tuple((int(p), int(s)) for p, s in reseeds) or ((0, seed),)
        """The seeds so far, from which position on; travels in the checkpoint's client state."""

    @property
    def seed(self) -> int:
        """The seed in force at the end of `reseeds`."""
        return self.reseeds[-1][1]

    @property
    @abstractmethod
    def skipped(self) -> tuple[SkippedRange, ...]:
        """What is left out; travels in the checkpoint's client state."""

    @property
    @abstractmethod
    def skipped_samples(self) -> int:
        """How many samples are left out, each once in its epoch or pass."""

    @property
    def epoch_samples(self) -> int | None:
        """Samples of one epoch; None where it has none that can be counted."""
        return None

    def change(self, position: int, *, seed: int | None, skip_samples: int | None) -> None:
        """At a start: leaves samples out, then permutes what is left anew; those that are left out stay where they
        are. None changes nothing. DataError where what was consumed would change."""
        if skip_samples is not None:
            self.skip(position, skip_samples)
        if seed is not None:
            self.reseed(self.first(position) if skip_samples else position, seed)

    def reseed(self, position: int, seed: int) -> None:
        """Permutes what comes at and after the position anew; what came before stays as it was."""
        if position < self.reseeds[-1][0]:
            raise DataError(f"a reseed at sample {position} would change what was consumed by {self.reseeds[-1][0]}")
        self.reseeds = (*(r for r in self.reseeds if r[0] != position), (position, seed))

    @abstractmethod
    def skip(self, position: int, count: int) -> None:
        """Leaves out the samples that stand, in the order of now, at the `count` positions from this one on."""

    @abstractmethod
    def first(self, position: int) -> int:
        """The position of the next sample that is not left out."""

    @abstractmethod
    def take(self, position: int, count: int, step: int | None = None) -> tuple[NDArray[np.int64], int]:
        """The next `count` sample numbers that are not left out, and the position after the last of them."""

    def indices(self, position: int, count: int) -> NDArray[np.int64]:
        """The `count` sample numbers that would be taken next from that position on."""
        return copy.copy(self).take(position, count)[0]

    def facts(self, position: int) -> dict[str, Any]:
        """{field of RunStarted: value} of a start at that position."""
        return {
            "seed": self.seed,
            "epoch_samples": self.epoch_samples,
            "first_sample_index": self.first(position),
            "skipped_samples": self.skipped_samples,
            "skipped_ranges": tuple(part.to_json() for part in self.skipped),
        }


class DataOrder(Order):
    """The plain order: the data as a whole, permuted anew in each epoch."""

    def __init__(
        self,
        samples: int,
        seed: int,
        reseeds: Sequence[Reseed] = (),
        skipped: Sequence[SkippedRange] = (),
        draw: Draw = shuffled,
    ) -> None:
        if samples < 1:
            raise DataError("there is no whole training sample")
        super().__init__(seed, reseeds)
        self._samples, self._draw = samples, draw
        self._skipped = tuple(skipped)

    @property
    def epoch_samples(self) -> int:
        return self._samples

    @property
    def skipped(self) -> tuple[SkippedRange, ...]:
        return self._skipped

    @property
    def skipped_samples(self) -> int:
        epochs = {e for r in self.skipped for e in range(r.begin // self._samples, (r.end - 1) // self._samples + 1)}
        return sum(self._samples - len(self._kept_from(epoch, 0, self._samples)) for epoch in epochs)

    def skip(self, position: int, count: int) -> None:
        self._skipped = (*self._skipped, SkippedRange(begin=position, end=position + count, reseeds=self.reseeds))

    def first(self, position: int) -> int:
        return self.take(position, 1)[1] - 1

    def after(self, count: int) -> int:
        """The position after the first `count` samples of the run that are not left out."""
        if not self.skipped:
            return count
        epoch = 0
        while count > (here := len(self._kept_from(epoch, 0, self._samples))):
            count, epoch = count - here, epoch + 1
        return epoch * self._samples + (int(self._kept_from(epoch, 0, count)[-1]) + 1 if count else 0)

    def at(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """The sample numbers at these positions, left out or not. A later reseed does not change what was consumed."""
        numbers = [self._order(p // self._samples)[p % self._samples] for p in positions]
        return np.array(numbers, dtype=np.int64)

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The positions from `begin` up to `end` that are not left out, as [first, after last) pairs."""
        if not self.skipped:
            return [(begin, end)] if begin < end else []
        kept: list[int] = []
        for epoch in range(begin // self._samples, -(-end // self._samples)):
            start = max(begin - epoch * self._samples, 0)
            offsets = self._kept_from(epoch, start, min(end - epoch * self._samples, self._samples) - start)
            kept += [p for p in (offsets + epoch * self._samples).tolist() if p < end]
        breaks = [i for i in range(1, len(kept)) if kept[i] != kept[i - 1] + 1]
        return [(kept[i], kept[j - 1] + 1) for i, j in pairwise([0, *breaks, len(kept)])] if kept else []

    def share(self, step: int) -> float | None:  # noqa: ARG002 - no step is different
        """Share of the samples that the step draws from; None is all of them, always."""
        return None

    def take(
        self,
        position: int,
        count: int,
        step: int | None = None,  # noqa: ARG002 - asked of every order
    ) -> tuple[NDArray[np.int64], int]:
        if not count:
            return np.empty(0, dtype=np.int64), position
        parts = []
        while True:
            epoch, offset = divmod(position, self._samples)
            taken = self._kept_from(epoch, offset, count)
            parts.append(self._order(epoch)[taken])
            count -= len(taken)
            if not count:
                return np.concatenate(parts), epoch * self._samples + int(taken[-1]) + 1
            position = (epoch + 1) * self._samples

    def _kept_from(self, epoch: int, offset: int, count: int) -> NDArray[np.int64]:
        """Offsets in the epoch, ascending, of the next `count` samples that are not left out; fewer at its end."""
        begin, end = epoch * self._samples, (epoch + 1) * self._samples
        ranges = tuple(r for r in self.skipped if r.begin < end and r.end > begin)
        if not ranges:
            return np.arange(offset, min(offset + count, self._samples))
        kept = _offsets_kept(self._samples, epoch, self.reseeds, ranges, self._draw)
        return kept[np.searchsorted(kept, offset) :][:count]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return _order(self._samples, epoch, self.reseeds, self._draw)


def _order(samples: int, epoch: int, reseeds: tuple[Reseed, ...], draw: Draw) -> NDArray[np.int64]:
    """The epoch's sample numbers, as the reseeds order them."""
    begin, end = epoch * samples, (epoch + 1) * samples
    before = [r for r in reseeds if r[0] <= begin]
    within = [(at - begin, seed) for at, seed in reseeds if begin < at < end]
    return _permuted(samples, epoch, before[-1][1], tuple(within), draw)


@lru_cache(maxsize=2)
def _permuted(samples: int, epoch: int, seed: int, reseeds: tuple[Reseed, ...], draw: Draw) -> NDArray[np.int64]:
    order = draw(samples, seed, epoch)
    for at, new in reseeds:
        order[at:] = np.random.default_rng([new, epoch, at]).permutation(order[at:])
    return order


@lru_cache(maxsize=2)
def _offsets_kept(
    samples: int, epoch: int, reseeds: tuple[Reseed, ...], skipped: tuple[SkippedRange, ...], draw: Draw
) -> NDArray[np.int64]:
    left_out = np.zeros(samples, dtype=bool)  # by sample number
    for part in skipped:
        begin, end = max(part.begin - epoch * samples, 0), min(part.end - epoch * samples, samples)
        left_out[_order(samples, epoch, part.reseeds or reseeds, draw)[begin:end]] = True
    return np.flatnonzero(~left_out[_order(samples, epoch, reseeds, draw)])
