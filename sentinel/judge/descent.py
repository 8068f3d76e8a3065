"""Which of a run's readings its present weights descend from."""

from __future__ import annotations

from collections.abc import Sequence

from sentinel.judge.readings import Readings

__all__ = ["descent", "ends_of_descent"]


def descent(stretches: Sequence[Readings]) -> list[Readings]:
    """The line of descent: what a later stretch did again is gone. In the order in which they were made."""
    ends = ends_of_descent([int(r.steps[0]) for r in stretches if len(r)])
    kept = [r if end is None else r.until(end) for r, end in zip((r for r in stretches if len(r)), ends, strict=True)]
    return [r for r in kept if len(r)]


def ends_of_descent(first_steps: Sequence[int]) -> list[int | None]:
    """For each stretch, by the first steps of all, the step from which on a later one has done it again; else None."""
    ends: list[int | None] = []
    earliest: int | None = None
    for first in reversed(first_steps):
        ends.append(earliest)
        earliest = first if earliest is None else min(first, earliest)
    return ends[::-1]
