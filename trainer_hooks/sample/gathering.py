"""Steps whose readings are on their way: from the device to the host, and from every rank to rank 0.

Every rank starts the reductions of every step, in the order of the steps, also where it could not read: so the ranks
always agree on the step that they add up.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_hooks.sample.all_ranks import AllRanks, Reduction
from trainer_hooks.sample.measurement import Measurement
from trainer_hooks.sample.reading import RankReading, Reading

__all__ = ["Gathering", "Layers"]

_MOST_STEPS = 100
"""Steps that may be on their way: beyond it a rank or the network is taken to hang, and nothing more is begun."""

_GLANCE_S = 50e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Adam's variance of every layer, over all ranks."""

    l1: tuple[float, ...]
    largest: tuple[float, ...]
    """max of sqrt(v)."""


@dataclass(slots=True, kw_only=True)
class _Step:
    global_step: int
    facts: Any  # for `report`; None where there is nothing to report
    measurement: Measurement | None  # none where this rank could not begin to measure
    layered: bool
    reductions: list[Reduction] = field(default_factory=list)


Report = Callable[[Any, Reading, Layers | None], None]


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
        """Goes on as far as it can within wait_s. Raises what a step's reduction or report raises; the next call goes
        on with the next step."""
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
                time.sleep(_GLANCE_S)
            self._start_one(step)

    def _start_one(self, step: _Step) -> None:
        reading = RankReading(global_step=step.global_step, failed=True)
        none = len(self._layers)
        sums, tops = [0.0] * 2 * none, [-math.inf] * none
        try:
            if step.measurement is not None:
                reading = step.measurement.rank_reading()
                if step.layered:
                    rows = step.measurement.layer_rows(self._layers)
                    sums, tops = rows.sums, rows.tops
        finally:  # every rank takes part, whatever it could read
            step.reductions.append(self._ranks.start(reading.sums(self._ranks.world), reading.tops()))
            if step.layered and self._layers:
                step.reductions.append(self._ranks.start(sums, tops))

    def _read(self, step: _Step) -> tuple[Reading, Layers | None]:
        of_step = step.reductions[0]
        world = self._ranks.world
        reading = Reading.of(of_step.sums.tolist(), of_step.tops.tolist(), global_step=step.global_step, world=world)
        if len(step.reductions) == 1 or reading.adam_variance_l1 is None:
            return reading, None
        sums, tops = step.reductions[1].sums.tolist(), step.reductions[1].tops.tolist()
        count = len(self._layers)
        largest = (math.nan if nans else math.sqrt(max(0.0, top)) for top, nans in zip(tops, sums[count:], strict=True))
        return reading, Layers(l1=tuple(sums[:count]), largest=tuple(largest))
