"""Samples that are left out of the training data, named so that they stay the same ones whatever happens later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.ranges import SIXTY_FOUR_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRange(Described):
    """The samples at the positions from `begin` up to, not including, `end` of the order that held when it was made.

    A later reseed, or a rollback to before the range, changes which samples stand at those positions. The samples that
    are meant are those of the order that `reseeds` describes.
    """

    begin: int  # Position in the run's data order: consumed_samples before the first sample that is left out
    end: int  # Position after the last one
    # (position, seed) pairs that make the order; () for a trainer whose order never changes.
    reseeds: tuple[tuple[int, Annotated[int, SIXTY_FOUR_BITS]], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end:
            raise ConfigError(f"a skipped range should begin at 0 or later and hold a sample: {self.begin}-{self.end}")
