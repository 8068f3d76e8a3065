"""Which positions of the data were consumed, as intervals: a run in order is one, whatever its length."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MOST_INTERVALS = 10_000
"""Positions that are more scattered are not counted: the account says so."""


class Intervals:
    """Disjoint, in order, none empty; of positions from `begin` to before `end`."""

    __slots__ = ("begins", "ends", "size")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.size = 0  # positions in all of them

    def add(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Adds the positions; those parts of them that were there already."""
        begins, ends = self.begins, self.ends
        if not ends or begin > ends[-1]:
            begins.append(begin)
            ends.append(end)
            self.size += end - begin
            return []
        first, last = bisect_left(ends, begin), bisect_right(begins, end)  # those that overlap or touch
        if first >= last:
            begins.insert(first, begin)
            ends.insert(first, end)
            self.size += end - begin
            return []
        near = zip(begins[first:last], ends[first:last], strict=True)
        known = [(max(a, begin), min(b, end)) for a, b in near if max(a, begin) < min(b, end)]
        begins[first:last] = [min(begin, begins[first])]
        ends[first:last] = [max(end, ends[last - 1])]
        self.size += end - begin - sum(b - a for a, b in known)
        return known


class Positions:
    """Counts of positions by how often, and in which order, they were consumed."""

    def __init__(self) -> None:
        self._seen, self._twice = Intervals(), Intervals()
        self._first: int | None = None
        self._highest = 0  # after the last position so far
        self._left_out = 0  # positions within a step's that it did not take
        self.out_of_order = 0
        """Consumed for the first time after a later one was."""

    def consumed(self, begin: int, end: int, *, left_out: int = 0) -> None:
        """By one step, or several; `left_out` of them it passed over."""
        seen = self._seen
        if self._first is None:
            self._first, self._highest = begin, begin
        before = seen.size
        for again in seen.add(begin, end):
            self._twice.add(*again)
        if begin < self._highest:
            self.out_of_order += seen.size - before - max(0, end - self._highest)
        self._highest, self._left_out = max(self._highest, end), self._left_out + left_out

    @property
    def scattered(self) -> bool:
        return len(self._seen.ends) + len(self._twice.ends) > MOST_INTERVALS

    @property
    def again(self) -> int:
        return self._twice.size

    @property
    def once(self) -> int:
        return self._seen.size - self._twice.size - self._left_out

    @property
    def gaps(self) -> int:
        """Positions before the last one that were not consumed, those left out on purpose included."""
        return self._highest - (self._first or 0) - self._seen.size + self._left_out
