"""The order of a data set that a sampler draws epoch by epoch, under a decision: a new seed, samples left out.

A loop finds its place by counting: (epoch, samples of it that are passed over). The run's samples in that count are
those of `DataOrder` that are not left out, so an epoch of the loop keeps its length, and what is left out moves what
follows up, over the epochs' borders too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sentinel.vocabulary.errors import ConfigError, OverridesError
from sentinel.vocabulary.training_settings import SkippedRange
from trainer_hooks.gpt.order import DataOrder, Draw, Reseed

__all__ = ["EpochOrder"]

_AT_ONCE = 65536  # Sample numbers that are looked up together


class EpochOrder:
    """`draw` gives a whole epoch as the sampler draws it with a seed."""

    def __init__(
        self,
        samples: int,
        own_seed: int,
        reseeds: Sequence[Reseed],
        skipped: Sequence[SkippedRange],
        draw: Draw,
    ) -> None:
        self._samples, self._own_seed = samples, int(reseeds[0][1] if reseeds else own_seed)
        self.order = DataOrder(samples, self._own_seed, reseeds, skipped, draw)

    @property
    def own_seed(self) -> int:
        """The seed that the run began with."""
        return self._own_seed

    @property
    def decided(self) -> bool:
        """Whether the order is another than the sampler's own."""
        return bool(self.order.skipped) or len(self.order.reseeds) > 1 or self.order.seed != self._own_seed

    def epoch(self, number: int) -> Iterator[int]:
        """The sample numbers of one epoch of the loop."""
        position, left = self.order.after(number * self._samples), self._samples
        while left:
            numbers, position = self.order.take(position, min(left, _AT_ONCE))
            left -= len(numbers)
            yield from numbers.tolist()

    def position(self, count: int) -> int:
        """consumed_samples after the loop's first `count` samples: those that are left out included."""
        return self.order.after(count)

    def change(self, count: int, *, seed: int | None, skip_samples: int | None) -> None:
        """At a resume after `count` samples, as `Order.change`. OverridesError."""
        try:
            self.order.change(self.position(count), seed=seed, skip_samples=skip_samples)
        except ConfigError as error:
            raise OverridesError(f"overrides.json: {error}") from error
