"""Spikes of many runs as the table that the judge's waiting is priced by. Pure.

Of each size (the loss's height above its level in half-widths of the noise band), of whether it falls back or another
signal agrees, and of each age: how many spikes that stood so high then never came back, and at what age the others did.
The share is pulled towards that of all spikes of the size and age, and that towards all of the age, as if by PRIOR
spikes; spikes of one family count as the square root of their number. The share that never comes back does not fall
with age.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentinel.plan.pooled_spikes import AGES, SIZES, Cell, Table
from sentinel.plan.waiting import Moment

from .episodes import Spike

__all__ = ["Seen", "at_ages", "pooled"]

KINDS = ("falling", "agreed", "alone")
PRIOR = 8.0
_OF_NONE = 0.01
"""What an age without spikes counts, where the share is made not to fall."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A spike that was open at an age of the grid."""

    row: int
    moment: Moment
    spike: Spike

    @property
    def back_at(self) -> int | None:
        """The first later row by whose age it was back; len(AGES) where it was not back by the last; None for never."""
        if self.spike.never:
            return None
        age = math.inf if self.spike.healed_age is None else self.spike.healed_age
        return max(self.row + 1, bisect_left(AGES, age))


def at_ages(spikes: Iterable[Spike]) -> list[Seen]:
    """Each spike at the first moment from each age of the grid on, where it lasted so long and counts."""
    found = []
    for spike in spikes:
        if spike.never is None:
            continue
        rows = set[int]()
        for moment in spike.moments:
            row = bisect_right(AGES, moment.age) - 1
            if row >= 0 and row not in rows:
                rows.add(row)
                found.append(Seen(row, moment, spike))
    return found


def pooled(spikes: Iterable[Spike]) -> Table:
    """The table."""
    seen = at_ages(spikes)
    keys = [(size, how) for size in range(len(SIZES) + 1) for how in KINDS]
    rows: dict[tuple[int, str], list[Cell]] = {key: [] for key in keys}
    for row in range(len(AGES)):
        here = [s for s in seen if s.row == row]
        everyone = _shares(here, row, None)
        for size in range(len(SIZES) + 1):
            same = [s for s in here if s.moment.kind[0] == size]
            parent = _shares(same, row, everyone)
            for how in KINDS:
                cell = [s for s in same if s.moment.kind[1] == how]
                rows[size, how].append(_cell(cell, _shares(cell, row, parent)))
    return {key: tuple(_rising(cells)) for key, cells in rows.items()}


def _shares(seen: Sequence[Seen], row: int, prior: list[float] | None) -> list[float]:
    """[never, back by each later age …, back later], 1 in sum."""
    bins = [None, *range(row + 1, len(AGES) + 1)]
    families = Counter(s.spike.family for s in seen)
    counts = dict.fromkeys(bins, 0.0)
    for s in seen:
        counts[s.back_at] += 1 / math.sqrt(families[s.spike.family])
    weight = PRIOR if prior is not None else 0.0
    before = prior or [1 / len(bins)] * len(bins)
    total = sum(counts.values()) + weight
    return [(counts[b] + weight * p) / total if total else p for b, p in zip(bins, before, strict=True)]


def _cell(seen: Sequence[Seen], shares: list[float]) -> Cell:
    return Cell(
        never=shares[0],
        healed_by=tuple(shares[1:-1]),
        spikes=len(seen),
        spikes_never=sum(bool(s.spike.never) for s in seen),
        families=len({s.spike.family for s in seen}),
    )


def _rising(cells: Sequence[Cell]) -> Iterable[Cell]:
    """The cells with `never` made not to fall with age (pool adjacent violators); the other shares scaled to it."""
    blocks: list[tuple[float, float, int]] = []  # sum of weighted shares, weight, cells
    for cell in cells:
        weight = max(cell.spikes, _OF_NONE)
        blocks.append((cell.never * weight, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            (a, n, i), (b, m, j) = blocks[-2:]
            blocks[-2:] = [(a + b, n + m, i + j)]
    levels = [total / weight for total, weight, n in blocks for _ in range(n)]
    for cell, never in zip(cells, levels, strict=True):
        scale = (1 - never) / (1 - cell.never) if cell.never < 1 else 0.0
        healed_by = tuple(round(scale * share, 4) for share in cell.healed_by)
        yield cell._replace(never=round(never, 4), healed_by=healed_by)
