"""The order of Trainer's training data under a decision: a new seed, samples left out. Without one Trainer's sampler is
not touched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, SequentialSampler

from sentinel.vocabulary.training_settings import SkippedRange
from trainer_hooks.epoch_order import EpochOrder
from trainer_hooks.gpt.order import Reseed


def why_not_ordered(trainer: Any, loader: Any) -> str | None:
    """Why the order of this loader can't be changed, as a phrase; None where it can."""
    holder = _holder(loader)
    if holder is None or type(loader).__name__ != "DataLoaderShard":
        return "its data set is read as a stream, or by a batch sampler of its own"
    if trainer.args.ignore_data_skip:
        return "ignore_data_skip gives up Trainer's place in the data at a resume"
    sampler = holder.sampler
    plain = type(sampler) is SequentialSampler or (_is_seedable(sampler) and not sampler.replacement)
    if not plain or len(sampler) != len(loader.dataset) or not len(sampler):
        return f"its sampler is a {type(sampler).__name__}"
    return None


class TrainOrder:
    """Takes the sampler's place in the loader once something is decided."""

    def __init__(self, trainer: Any, loader: Any, reseeds: Sequence[Reseed], skipped: Sequence[SkippedRange]) -> None:
        args = trainer.args
        self._trainer, self._holder = trainer, _holder(loader)
        self._inner = self._holder.sampler
        self._samples = len(self._inner)
        self._step_batches = args.gradient_accumulation_steps
        self._batch = loader.total_batch_size
        self._epoch_steps = max(1, -(-len(loader) // self._step_batches))
        own = getattr(self._inner, "initial_seed", args.seed if args.data_seed is None else args.data_seed)
        self._epochs = EpochOrder(self._samples, own, reseeds, skipped, self._draw)
        self.order = self._epochs.order
        if self.decided:
            self._holder.sampler = self

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        """One epoch of Trainer's; a resume passes over its first batches itself."""
        return self._epochs.epoch(self._trainer.state.global_step // self._epoch_steps)

    @property
    def decided(self) -> bool:
        """Whether the order is another than Trainer's own."""
        return self._epochs.decided

    def position(self, global_step: int) -> int:
        """consumed_samples after that step: where the order stands, the samples that are left out included."""
        return self._epochs.position(self._count(global_step))

    def change(self, global_step: int, *, seed: int | None, skip_samples: int | None) -> None:
        """At a resume from that step, as `Order.change`. OverridesError."""
        self._epochs.change(self._count(global_step), seed=seed, skip_samples=skip_samples)
        self._holder.sampler = self

    def close(self) -> None:
        self._holder.sampler = self._inner

    def _count(self, global_step: int) -> int:
        epoch, steps = divmod(global_step, self._epoch_steps)
        return int(epoch * self._samples + min(steps * self._step_batches * self._batch, self._samples))

    def _draw(self, samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """A whole epoch as Trainer draws it with that seed: data in its own order is permuted from a new seed on."""
        seed %= 2**63
        if not _is_seedable(self._inner):
            if seed == self._epochs.own_seed % 2**63:
                return np.arange(samples)
            return np.random.default_rng([seed, epoch]).permutation(samples)
        twin = copy.copy(self._inner)
        twin.generator, twin.initial_seed, twin.epoch = None, seed, epoch
        return np.fromiter(twin, dtype=np.int64, count=samples)


def _is_seedable(sampler: Any) -> bool:
    """Whether it is accelerate's, whose order follows from a seed and the epoch."""
    return type(sampler).__name__ == "SeedableRandomSampler"


def _holder(loader: Any) -> Any:
    """The plain batch sampler inside what accelerate has put around it, None where there is none."""
    found: Any = getattr(loader, "batch_sampler", None)
    while hasattr(found, "batch_sampler"):
        found = found.batch_sampler
    return found if type(found) is BatchSampler and hasattr(found, "sampler") else None
