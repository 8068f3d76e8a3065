"""Neighbouring lines of a log that differ in their numbers alone, and their samples, in columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.sample import Sample

Read = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class LineShape:
    pattern: re.Pattern[str]  # of the whole line; a group for each of `groups`
    groups: tuple[tuple[str, Read], ...]  # the field of Sample, or `step`, and how its text is read
    fields: Mapping[str, Any]  # of Sample, with the values of one of the lines: the others than `groups` stay the same
    rank: str | None
    total_steps: int | None


@dataclass(frozen=True, slots=True)
class AlikeLines:
    shape: LineShape
    lines: Sequence[str]
    texts: Sequence[tuple[str, ...]]  # of the shape's groups, for each line

    def __len__(self) -> int:
        return len(self.lines)

    def but_last(self) -> AlikeLines:
        return AlikeLines(self.shape, self.lines[:-1], self.texts[:-1])

    def column(self, name: str) -> list[Any]:
        """The values of a field, one for each line, None where it is not measured; `step` is the one that is written.
        Never nan or infinite, but for a time."""
        for at, (field, read) in enumerate(self.shape.groups):
            if field == name:
                return [read(texts[at]) for texts in self.texts]
        return [self.shape.fields.get(name)] * len(self)


@dataclass(frozen=True, slots=True)
class AlikeSamples:
    """Neighbouring samples of one attempt, none of them skipped."""

    attempt: int
    steps: Sequence[int]
    lines: AlikeLines

    def samples(self) -> Iterator[Sample]:
        names = tuple(self.lines.shape.fields.keys() | {"loss"})
        for step, *values in zip(self.steps, *map(self.lines.column, names), strict=True):
            yield Sample(attempt=self.attempt, global_step=step, **dict(zip(names, values, strict=True)))
