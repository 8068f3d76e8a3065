"""Steps whose readings are on their way: from the device to the host, and from every rank to rank 0.

The training thread hands each step over and goes on. The ranks' own thread takes the steps in their order, one after
the other, waits until a step's readings are on the host, and sends them up the levels of the hook's groups. Every rank
sends a row for every step, an empty one where it could not read or where too many wait: so ranks that lost different
steps, while one of them stood still, are together again at the next. A row says which step and which attach it is of;
rows of different ones are never added.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trainer_hooks.errors import Guard
from trainer_hooks.ranks.frame import STATE, STEP, SUMS, TOPS, contents, filled, frame_of, refused
from trainer_hooks.ranks.groups import Levels
from trainer_hooks.ranks.names import Union
from trainer_hooks.ranks.ranks import Ranks
from trainer_hooks.sample.reading import ADDED, LARGEST, Measurement, Reading, no_parts, reading_of, rows_of
from trainer_hooks.sample.state_parts import parts_of, rows_of_parts

_MOST_STEPS = 100
"""Steps whose readings may be on their way. Those of more are left out: a rank or the network is taken to hang."""

_POLL_S = 50e-6  # between two looks whether a measurement is on the host, of a rank that is alone

LayerValues = dict[str, Any]
"""Of every layer over all ranks the fields of LayerVariance; of a state the parts of State as well."""

Report = Callable[[Any, Reading | None, LayerValues | None], None]
"""(facts, reading, layers): no reading where the other ranks' cannot come, no layers where they were not read."""


@dataclass(slots=True, kw_only=True)
class _Step:
    """A task of the ranks' thread."""

    gathering: Gathering
    global_step: int
    facts: Any  # for `report`; None where there is nothing to report
    measurement: Measurement | None  # none where this rank could not begin to measure
    layered: bool
    state: bool  # whether it is no step, but the state at a save or a start, in its parts

    def run(self, levels: Levels) -> None:
        self.gathering.send(self, levels)

    def give_up(self) -> None:
        self.gathering.arrived(self, None)


class Gathering:
    """Brings the steps' readings together; `report` is called on rank 0, on the training thread, in the order of the
    steps. `layers` are the names over all ranks, which come before the first step."""

    def __init__(self, ranks: Ranks, layers: Union, report: Report, guard: Guard) -> None:
        self._ranks = ranks
        self._layers = layers
        self._report = report
        self._guard = guard
        self._alone: deque[_Step] = deque()  # of a rank that has no others: it needs no thread
        self._under_way = 0
        self._arrived: deque[tuple[_Step, Any]] = deque()
        self._news = threading.Condition()

    @property
    def layers(self) -> tuple[str, ...]:
        """The names over all ranks; none before they have come."""
        return tuple(self._layers.names or ())

    def __len__(self) -> int:
        """Steps whose readings this rank has not sent yet; on rank 0, those whose readings have not come."""
        return self._under_way

    def add(
        self, global_step: int, facts: Any, measurement: Measurement | None, *, layered: bool, state: bool = False
    ) -> None:
        """Takes up a step, on every rank, or the `state` after it. RuntimeError when too many are on their way: the
        step's row is empty."""
        too_many = self._under_way >= _MOST_STEPS
        if too_many:
            facts = measurement = None
        step = _Step(
            gathering=self,
            global_step=global_step,
            facts=facts,
            measurement=measurement,
            layered=layered,
            state=state,
        )
        with self._news:
            self._under_way += 1
        if self._ranks.world == 1:
            self._alone.append(step)
        else:
            self._ranks.submit(step)
        if too_many:
            raise RuntimeError(f"the readings of the last {_MOST_STEPS} steps have not come together: a rank hangs")

    def advance(self, wait_s: float = 0.0) -> None:
        """Reports what has come within wait_s. What a step's reading or report raises is the guard's."""
        deadline = time.monotonic() + wait_s
        self._read_alone(deadline)
        with self._news:
            self._news.wait_for(lambda: not self._under_way, max(0.0, deadline - time.monotonic()))
        while self._arrived:
            with self._guard("make the sample"):
                self._take(*self._arrived.popleft())

    def _take(self, step: _Step, came: Any) -> None:
        step.measurement = None  # here, on the training thread: to free pinned memory is a call to CUDA
        if isinstance(came, Exception):
            raise came
        if step.facts is not None:
            self._report(step.facts, *((None, None) if came is None else came))
            if came is None:
                why = self._ranks.why_over or "a rank could not take part"
                raise RuntimeError(f"the readings of the other ranks are not there: {why}")

    def send(self, step: _Step, levels: Levels) -> None:
        """On the ranks' thread: every frame of the step, whatever could be read. Raises what the network raises; what
        cannot be read is raised in `advance`."""
        layers = self._layers.names
        if layers is None:  # on every rank: one of them takes no part
            self.arrived(step, None)
            return
        error, reading = None, None
        none = [0.0] * len(layers), [0.0] * len(layers), [-math.inf] * len(layers)
        of_layers, parts = none, no_parts(len(layers))
        if step.measurement is not None:
            levels.wait_for(step.measurement.ready)
            try:
                reading = step.measurement.rank_reading()
                of_layers = step.measurement.layer_rows(layers) if step.layered else none
                parts = step.measurement.layer_parts(layers) if step.state else parts
            except Exception as failed:  # noqa: BLE001 - for the training thread, whose guard counts it
                error, reading, of_layers, parts = failed, None, none, no_parts(len(layers))
        rows = [rows_of(reading, world=self._ranks.world)]
        if step.layered:
            rows += [_part(of_layers, first) for first in range(0, len(layers), TOPS)]
        if step.state:
            rows += rows_of_parts(reading, parts, rank=self._ranks.rank, world=self._ranks.world)
        heads = (
            frame_of(STATE if step.state else STEP, self._layers.channel, step.global_step, part)
            for part in range(len(rows))
        )
        combined = [levels.top_of(filled(head, *row)) for head, row in zip(heads, rows, strict=True)]
        try:
            self.arrived(step, error or self._read(step, combined, layers))
        except Exception as failed:  # noqa: BLE001 - as above
            self.arrived(step, failed)

    def arrived(self, step: _Step, came: Any) -> None:
        """The step is over: (reading, layers), an error, or None where the other ranks' readings cannot come."""
        with self._news:
            self._under_way -= 1
            self._arrived.append((step, came))
            self._news.notify_all()

    def _read(
        self, step: _Step, frames: list[Tensor | None], layers: list[str]
    ) -> tuple[Reading | None, LayerValues | None]:
        whole = [frame for frame in frames if frame is not None]
        if not whole:
            return None, None  # rank 0 has them
        if any(refused(frame) for frame in whole):
            raise RuntimeError(f"the ranks' readings of step {step.global_step} and of other steps came together")
        reading = reading_of(*contents(whole[0], ADDED, LARGEST), global_step=step.global_step, world=self._ranks.world)
        if len(whole) == 1 or reading["adam_variance_l1"] is None:
            return reading, None
        of_layers = 1 + -(-len(layers) // TOPS)
        l1: list[float] = []
        largest: list[float] = []
        for first, frame in zip(range(0, len(layers), TOPS), whole[1:of_layers], strict=True):
            count = min(TOPS, len(layers) - first)
            sums, tops = contents(frame, 2 * count, count)
            l1 += sums[:count]
            largest += [math.nan if n else math.sqrt(max(0.0, v)) for v, n in zip(tops, sums[count:], strict=True)]
        values: LayerValues = {"adam_variance_l1": tuple(l1), "adam_variance_max": tuple(largest)}
        if step.state:
            parts = [contents(frame, SUMS, TOPS) for frame in whole[of_layers:]]
            with_moments = reading["momentum_l2"] is not None
            values |= parts_of(parts, layers=len(layers), world=self._ranks.world, with_moments=with_moments)
        return reading, values

    def _read_alone(self, deadline: float) -> None:
        """The steps of a rank that has no others, as far as they are on the host."""
        while self._alone:
            measurement = self._alone[0].measurement
            while measurement is not None and not measurement.ready():
                if time.monotonic() >= deadline:
                    return
                time.sleep(_POLL_S)
            self.send(self._alone.popleft(), Levels([]))


def _part(rows: tuple[list[float], list[float], list[float]], first: int) -> tuple[list[float], list[float]]:
    """The (sums, tops) of one frame: those of the layers from `first` on, at most TOPS of them."""
    l1, nans, tops = (row[first : first + TOPS] for row in rows)
    return l1 + nans, tops
