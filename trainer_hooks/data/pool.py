"""The pool of a step: the samples that are easy enough for it, by one metric or by several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError
from trainer_hooks.data.index import Index

__all__ = ["Counts", "Difficulty", "Pace", "Pool"]

Counts = tuple[int, ...]
"""For each metric, how many samples it lets in: the first so many of its index."""


class Difficulty(Protocol):
    """A pacing schedule."""

    def difficulty(self, step: int) -> float:
        """What the step (counted from 1) may draw: a value, or a percentage from 0 to 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How one metric grows harder."""

    index: Index
    difficulty: Difficulty | Callable[[int], float]
    kind: Literal["value", "percentile"]

    def let_in(self, step: int) -> int:
        """How many samples the metric lets in at that step: the first so many of its index."""
        at = self.difficulty(step) if callable(self.difficulty) else self.difficulty.difficulty(step)
        return self.index.up_to_value(at) if self.kind == "value" else self.index.up_to_percentile(at)


class Pool:
    """The samples that every metric lets in."""

    def __init__(self, paces: Sequence[Pace]) -> None:
        if not paces:
            raise DataError("a curriculum has at least one metric")
        lengths = [len(pace.index) for pace in paces]
        if len(set(lengths)) != 1:
            raise DataError(f"the indexes are not of the same samples: they have {lengths}")
        self.paces = tuple(paces)
        self.samples = len(paces[0].index)
        """In the whole data set."""

    def let_in(self, step: int) -> Counts:
        """How many samples each metric lets in at that step."""
        return tuple(pace.let_in(step) for pace in self.paces)

    def joined(self, before: Counts, now: Counts) -> NDArray[Any]:
        """(joined,) sample numbers that are in the pool of `now` and not in that of `before`, which is no larger.

        Reads only what each metric has let in since, and of that what the others let in. Each sample is found where
        the last metric that held it back lets it in; so none is found twice, and the order is always the same.
        """
        parts = []
        for number, pace in enumerate(self.paces):
            found = pace.index.order[before[number] : now[number]]
            for other, theirs in enumerate(self.paces):
                if other != number:
                    found = found[_within(theirs.index, found, before[other] if other > number else now[other])]
            parts.append(found)
        return np.concatenate(parts)

    def said(self, step: int) -> str:
        """What the metrics ask of that step, in words."""
        return ", ".join(f"{p.index.name} lets in {p.let_in(step)} of {len(p.index)}" for p in self.paces)


def _within(index: Index, samples: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Whether each of the samples is among the first `count` of the index."""
    if not count:
        return np.zeros(len(samples), dtype=bool)
    last = int(index.order[count - 1])
    values, limit = index.values[samples], index.values[last]
    within: NDArray[np.bool_] = (values < limit) | ((values == limit) & (samples <= last))
    return within
