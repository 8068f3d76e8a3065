"""The micro-batches of each step on this rank: dealt out of the global batch, or packed of what was kept for later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer_hooks.gpt.data import Corpus
from trainer_hooks.random_ltd import DataRank
from trainer_hooks.seqlen_warmup import SeqlenWarmup

__all__ = ["Feed", "Order"]


class Order(Protocol):
    """Which sample stands at which position of the run."""

    def take(self, position: int, count: int, step: int | None = None) -> tuple[NDArray[np.int64], int]: ...

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]: ...

    def at(self, positions: list[int]) -> NDArray[np.int64]: ...


class Feed:
    """Deals out the samples of a step so that they are the same on any number of ranks, whatever the micro-batch."""

    def __init__(self, corpus: Corpus, order: Order, warmup: SeqlenWarmup, rank: DataRank, *, micro: int) -> None:
        self._corpus = corpus
        self._order = order
        self._warmup = warmup
        self._rank = rank
        self._micro = micro

    def step(self, step: int, position: int, samples: int) -> tuple[Iterator[Tensor], int]:
        """This rank's micro-batches of the step that the warmup has begun, each (micro, F + 1) tokens; and the position
        in the data order after it.

        Of the step's samples the last ones are packed of what the warmup has kept; the others come from the order.
        """
        kept = self._warmup.kept_samples
        fresh, after = self._order.take(position, samples - kept, step)  # (samples - kept,)
        if self._warmup.cuts:
            self._warmup.took(self._order.runs(position, after))
        slots = np.arange(samples).reshape(-1, self._rank.size, self._micro)[:, self._rank.rank]
        return (self._tokens(fresh, each) for each in slots), after

    def _tokens(self, fresh: NDArray[np.int64], slots: NDArray[Any]) -> Tensor:
        ordered = torch.from_numpy(self._corpus.training(fresh[slots[slots < len(fresh)]]))
        later = slots[slots >= len(fresh)] - len(fresh)
        return torch.cat([ordered, self._warmup.packed(later.tolist(), self._read)]) if len(later) else ordered

    def _read(self, positions: list[int]) -> Tensor:
        return torch.from_numpy(self._corpus.training(self._order.at(positions)))
