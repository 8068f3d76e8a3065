"""A DistributedSampler under a decision: a new seed, samples left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DistributedSampler, Sampler

from sentinel.vocabulary.training_settings import SkippedRange
from trainer_hooks.epoch_order import EpochOrder
from trainer_hooks.gpt.order import Reseed

__all__ = ["DecidedSampler", "why_not_ordered"]


def why_not_ordered(sampler: Any) -> str | None:
    """Why the order of this sampler can't be changed, as a phrase; None where it can."""
    if type(sampler) is not DistributedSampler:
        return f"a {type(sampler).__name__}'s order does not follow from a seed and an epoch: use a DistributedSampler"
    if not sampler.drop_last and len(sampler.dataset) % sampler.num_replicas:  # type: ignore[arg-type]
        return "its ranks repeat samples at an epoch's end: drop_last=True"
    return None


class DecidedSampler(Sampler[int]):
    """Draws for the same rank as the sampler that it stands for; `set_epoch` is that one's."""

    def __init__(
        self, inner: DistributedSampler[Any], reseeds: Sequence[Reseed], skipped: Sequence[SkippedRange]
    ) -> None:
        self._inner = inner
        self._epochs = EpochOrder(inner.total_size, inner.seed, reseeds, skipped, self._draw)
        self.order = self._epochs.order

    @property
    def decided(self) -> bool:
        """Whether the order is another than the inner sampler's own."""
        return self._epochs.decided

    def position(self, consumed: int) -> int:
        """Of the run's order after so many samples, those that are left out included."""
        return self._epochs.position(consumed)

    def change(self, consumed: int, *, seed: int | None, skip_samples: int | None) -> None:
        """At a resume after so many samples. OverridesError."""
        self._epochs.change(consumed, seed=seed, skip_samples=skip_samples)

    def set_epoch(self, epoch: int) -> None:
        """Before each epoch's iterator."""
        self._inner.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[int]:
        inner = self._inner
        return islice(self._epochs.epoch(inner.epoch), inner.rank, None, inner.num_replicas)

    def _draw(self, samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """A whole epoch as the inner sampler draws it with that seed."""
        whole = len(self._inner.dataset)  # type: ignore[arg-type]
        if not self._inner.shuffle:
            if seed == self._epochs.own_seed:
                return np.arange(samples)
            return np.random.default_rng([seed % 2**63, epoch]).permutation(samples)
        drawn = torch.randperm(whole, generator=torch.Generator().manual_seed((seed + epoch) % 2**63))
        return drawn[:samples].numpy().astype(np.int64)
