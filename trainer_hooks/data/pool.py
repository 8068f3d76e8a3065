"""The pool of a step: the samples that are easy enough for it, by one metric or by several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.codec import Form, fields_of, read
from sentinel.vocabulary.errors import DataError
from trainer_hooks.data.index import Index

_FORM = Form(error=DataError, name="the checkpoint's curriculum state", ignores_unknown=True)
Counts = tuple[int, ...]  # For each metric, how many samples it lets in: the first so many of its index


class Difficulty(Protocol):
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
        self.samples = len(paces[0].index)  # In the whole data set

    def let_in(self, step: int) -> Counts:
        return tuple(pace.let_in(step) for pace in self.paces)

    def joined(self, before: Counts, now: Counts) -> NDArray[Any]:
        """(joined,) sample numbers that are in the pool of `now` and not in that of `before`, which is no larger. Reads
        only what each metric has let in since, and of that what the others let in. Each sample is found where the last
        metric to admit it does; so none is found twice, and the order is always the same."""
        parts = []
        for number, pace in enumerate(self.paces):
            found = pace.index.order[before[number] : now[number]]
            for other, theirs in enumerate(self.paces):
                if other != number:
                    found = found[_within(theirs.index, found, before[other] if other > number else now[other])]
            parts.append(found)
        return np.concatenate(parts)


def _within(index: Index, samples: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Whether each of the samples is among the first `count` of the index."""
    if not count:
        return np.zeros(len(samples), dtype=bool)
    last = int(index.order[count - 1])
    values, limit = index.values[samples], index.values[last]
    within: NDArray[np.bool_] = (values < limit) | ((values == limit) & (samples <= last))
    return within


class Segment(NamedTuple):
    """What joined a pass at once."""

    up_to: Counts  # What each metric let in when it joined. It holds what the segment before it did not let in.
    size: int  # Samples
    drawn: int  # Of them, in the order of its permutation
    # (drawn, seed): from that many drawn samples on, what is left is permuted anew by that seed.
    seeds: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the drawing stands; all that a restart needs."""

    position: int = 0  # Samples drawn so far, since the run began
    step: int = 0  # The last step that drew
    passes: int = 0  # Begun so far; the present one has this number
    let_in: Counts = ()  # What each metric let in at the last step
    segments: tuple[Segment, ...] = ()  # Of the present pass

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint's client state holds it; a segment is a list."""
        return fields_of(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Progress:
        """What to_json gave. DataError when it is something else."""
        if isinstance(data, Mapping) and (missing := [f.name for f in fields(cls) if f.name not in data]):
            raise DataError(f"{_FORM.name} can't be read: it has no {missing[0]!r}")
        return read(cls, data, _FORM.name, _FORM)
