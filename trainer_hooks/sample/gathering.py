"""Steps whose readings are on their way: from the device to the host, and from every rank to rank 0.

The hook has process groups of its own (gloo, on the CPU), and its reductions are asynchronous: a missing rank or a
hanging network costs rank 0 samples, and never delays the training's own collectives. Every rank starts the reductions
of every step, in the order of the steps, also where it could not read: so the ranks agree on the step that they add up.
Many ranks take two levels (groups of `_FAN` ranks, then the groups' first ranks): gloo connects all pairs of a group.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer_hooks.sample.reading import Measurement, Reading, reading_of, rows_of

_FAN = 64  # ranks of one group: each has at most 63 connections
_POLL_S = 50e-6  # between two polls of a reduction or a measurement that is waited for


class AllRanks:
    """The hook's own groups. Made on every rank; its reductions are started on every rank in the same order."""

    def __init__(self, *, fan: int = _FAN) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self._levels: list[tuple[Any, int]] = []  # (group, its first rank) of this rank's levels, the lowest first
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
        return Reduction(self._levels, self.rank, sums, tops)

    def union(self, names: Sequence[str]) -> list[str]:
        """The names of all ranks, each once, in the order of the ranks; the same list on every rank."""
        known: list[str] = list(names)
        for group, first in self._levels:
            gathered: list[Any] = [None] * dist.get_world_size(group)
            dist.gather_object(known, gathered if self.rank == first else None, first, group=group)
            if self.rank == first:
                known = list(dict.fromkeys(name for some in gathered for name in some))
        for group, first in reversed(self._levels):
            received: list[Any] = [known]
            dist.broadcast_object_list(received, first, group=group)
            known = received[0]
        return known

    def close(self) -> None:
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
        self.poll()

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
                    self._left = []  # the next levels are without this rank
            while not all(work.is_completed() for work in self._works):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL_S)
            for work in self._works:
                work.wait()  # completed: this only raises its error
            self._works = []
        return True


_MOST_STEPS = 100
"""Steps that may be on their way: beyond it a rank or the network is taken to hang, and nothing more is begun."""


@dataclass(slots=True, kw_only=True)
class _Step:
    global_step: int
    facts: Any  # for `report`; None where there is nothing to report
    measurement: Measurement | None  # none where this rank could not begin to measure
    layered: bool
    reductions: list[Reduction] = field(default_factory=list)


Report = Callable[[Any, Reading, dict[str, tuple[float, ...]] | None], None]
"""(facts, reading, of every layer over all ranks the fields of LayerVariance; None where they were not read)."""


class Gathering:
    """Brings the steps' readings together; `report` is called on rank 0, in the order of the steps."""

    def __init__(self, ranks: AllRanks, layers: Sequence[str], report: Report) -> None:
        self._ranks = ranks
        self._layers = list(layers)
        self._report = report
        self._steps: deque[_Step] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, global_step: int, facts: Any, measurement: Measurement | None, *, layered: bool) -> None:
        """Takes up a step, on every rank. RuntimeError when too many are on their way: the step is not begun."""
        if len(self._steps) >= _MOST_STEPS:
            raise RuntimeError(f"the readings of the last {_MOST_STEPS} steps have not come together: a rank hangs")
        self._steps.append(_Step(global_step=global_step, facts=facts, measurement=measurement, layered=layered))

    def close(self) -> None:
        """Leaves the hook's own groups of ranks. RuntimeError where readings are missing: the groups stay."""
        if self._steps:
            raise RuntimeError(f"the readings of {len(self._steps)} step(s) have never come")
        self._ranks.close()

    def advance(self, wait_s: float = 0.0) -> None:
        """Goes on as far as it can within wait_s. Raises what a step's reduction or report raises, once."""
        deadline = time.monotonic() + wait_s
        self._start(deadline)
        while self._steps and self._steps[0].reductions:
            step = self._steps[0]
            try:
                if not all(r.poll(max(0.0, deadline - time.monotonic())) for r in step.reductions):
                    return
            except Exception:
                self._steps.popleft()
                raise
            self._steps.popleft()
            if self._ranks.rank == 0 and step.facts is not None:
                self._report(step.facts, *self._read(step))

    def _start(self, deadline: float) -> None:
        for step in self._steps:
            if step.reductions:
                continue
            while step.measurement is not None and not step.measurement.ready():
                if time.monotonic() >= deadline:
                    return
                time.sleep(_POLL_S)
            self._start_one(step)

    def _start_one(self, step: _Step) -> None:
        reading, none = None, len(self._layers)
        sums, tops = [0.0] * 2 * none, [-math.inf] * none
        try:
            if step.measurement is not None:
                reading = step.measurement.rank_reading()
                if step.layered:
                    sums, tops = step.measurement.layer_rows(self._layers)
        finally:  # every rank takes part, whatever it could read
            rows = rows_of(reading, global_step=step.global_step, world=self._ranks.world)
            step.reductions.append(self._ranks.start(*rows))
            if step.layered and self._layers:
                step.reductions.append(self._ranks.start(sums, tops))

    def _read(self, step: _Step) -> tuple[Reading, dict[str, tuple[float, ...]] | None]:
        of_step = step.reductions[0]
        world = self._ranks.world
        reading = reading_of(of_step.sums.tolist(), of_step.tops.tolist(), global_step=step.global_step, world=world)
        if len(step.reductions) == 1 or reading["adam_variance_l1"] is None:
            return reading, None
        sums, tops = step.reductions[1].sums.tolist(), step.reductions[1].tops.tolist()
        count = len(self._layers)
        largest = (math.nan if nans else math.sqrt(max(0.0, top)) for top, nans in zip(tops, sums[count:], strict=True))
        return reading, {"adam_variance_l1": tuple(sums[:count]), "adam_variance_max": tuple(largest)}
