"""Samples that are left out of the training data, named so that they stay the same ones whatever happens later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.errors import ConfigError

__all__ = ["SkippedRange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRange:
    """The samples at the positions from `begin` up to, not including, `end` of the order that held when it was made.

    A later reseed, or a rollback to before the range, changes which samples stand at those positions. The samples that
    are meant are those of the order that `reseeds` describes.
    """

    begin: int
    """Position in the run's data order: consumed_samples before the first sample that is left out."""

    end: int
    """Position after the last one."""

    reseeds: tuple[tuple[int, int], ...] = ()
    """(position, seed) pairs that make the order; () for a trainer whose order never changes."""

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end:
            raise ConfigError(f"a skipped range should begin at 0 or later and hold a sample: {self.begin}-{self.end}")

    def to_json(self) -> dict[str, Any]:
        """As overrides.json, journals and checkpoints hold it."""
        return {"begin": self.begin, "end": self.end, "reseeds": [list(pair) for pair in self.reseeds]}

    @classmethod
    def from_json(cls, data: Any) -> SkippedRange:
        """The range that to_json gave. ConfigError when it is something else."""
        if not isinstance(data, Mapping) or data.keys() - {"begin", "end", "reseeds"}:
            raise ConfigError(f"a skipped range has begin, end and reseeds, and is not {data!r}")
        try:
            reseeds = tuple((_whole(at), _whole(seed)) for at, seed in data.get("reseeds", ()))
            return cls(begin=_whole(data["begin"]), end=_whole(data["end"]), reseeds=reseeds)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a skipped range counts samples in whole numbers: {data!r}") from error


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    return value
