"""Small sums and maxima over all ranks that no training step ever waits for.

The hook has process groups of its own (gloo, on the CPU), so that a rank which could not take part, or a network that
hangs, is nothing that the training's own collectives can run into: they are other groups, and every reduction here is
asynchronous, started at one step and picked up when it is there. What does not arrive is a sample lost, on rank 0.

Over many ranks it goes in two levels (groups of `_FAN` ranks, then the groups' first ranks), because gloo connects
every pair of ranks of a group.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["AllRanks", "Reduction"]

_FAN = 64  # ranks of one group: up to here one level is enough, and each rank holds at most 63 connections


_GLANCE_S = 50e-6  # how often a reduction that is waited for is looked at


class AllRanks:
    """The hook's own groups. To be made on every rank, and its reductions started on every rank in the same order."""

    def __init__(self, *, fan: int = _FAN) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self._levels: list[tuple[Any, int]] = []
        """(group, its first rank) of the levels that this rank takes part in, the lowest first."""

        if self.world > 1:
            self._open(fan)

    def _open(self, fan: int) -> None:
        members = list(range(self.world))
        while len(members) > 1:
            firsts = members[::fan]
            for first, part in ((f, members[n * fan : (n + 1) * fan]) for n, f in enumerate(firsts)):
                group = dist.new_group(part, backend="gloo") if len(part) > 1 else None
                if group is not None and self.rank in part:
                    self._levels.append((group, first))
            members = firsts

    def start(self, sums: Sequence[float], tops: Sequence[float]) -> Reduction:
        """Begins to add `sums` and to take the largest of `tops` over all ranks, position by position, in float64."""
        reduction = Reduction(self._levels, self.rank, sums, tops)
        reduction.poll()
        return reduction

    def union(self, names: Sequence[str]) -> list[str]:
        """The names of all ranks, each once, in the order of the ranks; the same list on every rank."""
        known: list[str] = list(names)
        for group, first in self._levels:
            gathered: list[Any] = [None] * dist.get_world_size(group)
            dist.gather_object(known, gathered if self.rank == first else None, first, group=group)
            if self.rank == first:
                known = list(dict.fromkeys(name for some in gathered for name in some))
        for group, first in reversed(self._levels):
            told: list[Any] = [known]
            dist.broadcast_object_list(told, first, group=group)
            known = told[0]
        return known

    def close(self) -> None:
        """Leaves the groups."""
        for group, _ in reversed(self._levels):
            dist.destroy_process_group(group)
        self._levels = []


class Reduction:
    """One pair of reductions under way. Each level takes at most two collectives: one SUM, one MAX."""

    def __init__(self, levels: Sequence[tuple[Any, int]], rank: int, sums: Sequence[float], tops: Sequence[float]):
        self._left = list(levels)
        self._rank = rank
        self.sums: Tensor = torch.tensor(sums, dtype=torch.float64)
        self.tops: Tensor = torch.tensor(tops, dtype=torch.float64)
        self._works: list[Any] = []

    def poll(self, wait_s: float = 0.0) -> bool:
        """Goes on as far as it can within wait_s; True when this rank's part is done. On rank 0 `sums` and `tops` are
        then those of all ranks. RuntimeError where a level failed: a rank is gone, or the network is."""
        deadline = time.monotonic() + wait_s
        while self._works or self._left:
            if not self._works:
                group, first = self._left.pop(0)
                self._works = [
                    dist.reduce(self.sums, first, dist.ReduceOp.SUM, group=group, async_op=True),
                    dist.reduce(self.tops, first, dist.ReduceOp.MAX, group=group, async_op=True),
                ]
                if first != self._rank:
                    self._left = []  # it goes on without this rank
            while not all(work.is_completed() for work in self._works):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_GLANCE_S)
            for work in self._works:
                work.wait()  # it is there: this only raises what went wrong
            self._works = []
        return True
