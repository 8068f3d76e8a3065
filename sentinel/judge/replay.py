"""A run's whole past, attempt after attempt, judged as it would have been live."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

from sentinel.judge.analysis.departures import FirstMoved
from sentinel.judge.analysis.first_mover import moved_before, reads_from
from sentinel.judge.events import Event, EventKind, regime_change
from sentinel.judge.readings import Readings
from sentinel.judge.reference import Reference
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds

_KEPT_SAMPLES = 1 << 18  # Samples that a run can go back by and still be judged by all of its past
_Kept = tuple[Series, Readings]  # A stretch of the present lineage, and the judge as it was before it
_Found = tuple[Event, FirstMoved | None]
_OF_THE_LOSS = (EventKind.SPIKE, EventKind.DIVERGENCE, EventKind.NAN)  # Events that something may have moved before


class Replay:
    """Takes readings in the order they were made. What is kept does not grow with the samples. When an attempt begins
    at a step that an earlier one had passed, the judge is set back to that step, as the weights were: what happened
    after it stays an event, but the lineage never saw it. `planned`, `references`: see Series."""

    def __init__(
        self, thresholds: Thresholds, planned: Iterable[int] = (), references: Sequence[Reference] = ()
    ) -> None:
        self._fresh = partial(Series, thresholds, planned=tuple(planned), references=references)
        self.series = self._fresh()  # The judge on the newest attempt's lineage
        self._kept: deque[_Kept] = deque()
        self._gone: list[_Found] = []
        self._moved: dict[tuple[int, int], FirstMoved] = {}  # By the onset, where the readings near it are not kept
        self._attempt: int | None = None
        self.clip: float | None = None  # Largest norm of the gradient, 0 for no limit; None where it is not known
        self.samples = 0  # Samples so far, of all attempts

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(sorted([*(e for e, _ in self._gone), *self.series.events], key=lambda e: e.onset_range))

    @property
    def found(self) -> tuple[_Found, ...]:
        """The events, each with what moved first before it, as an incident records it; None where no loss moved."""
        found = [*self._gone, *((event, self._moved_first(event)) for event in self.series.events)]
        return tuple(sorted(found, key=lambda one: one[0].onset_range))

    def push(self, readings: Readings) -> None:
        if not len(readings):
            return
        self._begin(readings.attempt, int(readings.steps[0]))
        self._kept.append((deepcopy(self.series), readings))
        self.series.push_readings(readings)
        self.samples += len(readings)
        while len(self._kept) > 1 and sum(len(readings) for _, readings in self._kept) > _KEPT_SAMPLES:
            self._forget_first()

    def end(self) -> None:
        self.series.end()

    def _begin(self, attempt: int, first_step: int) -> None:
        last_step = self.series.last_step
        if attempt == self._attempt or last_step is None or first_step > last_step:
            self._attempt = attempt
            return
        self._attempt = attempt
        for event in self.series.events:
            if event.onset_range[1] >= first_step:
                over = replace(event, end_step=last_step) if event.end_step is None else event
                self._gone.append((over, self._moved_first(event)))
        what = f"attempt {attempt} begins at step {first_step}, the one before it had reached {last_step}"
        self._gone.append((regime_change(first_step, what), None))
        self._moved = {onset: moved for onset, moved in self._moved.items() if onset[1] < first_step}
        self._set_back(first_step)

    def _moved_first(self, event: Event) -> FirstMoved | None:
        if event.kind not in _OF_THE_LOSS:
            return None
        known = self._moved.get(event.onset_range)
        return known or moved_before([readings for _, readings in self._kept], event.onset_range, self.clip)

    def _forget_first(self) -> None:
        """Drops the first stretch that is kept, once the events that its readings are near to have been analysed."""
        last_step = int(self._kept[0][1].steps[-1])
        for event in self.series.events:
            if reads_from(event.onset_range) <= last_step and (moved := self._moved_first(event)) is not None:
                self._moved[event.onset_range] = moved
        self._kept.popleft()

    def _set_back(self, first_step: int) -> None:
        while self._kept and int(self._kept[-1][1].steps[0]) >= first_step:
            self.series, _ = self._kept.pop()
        if not self._kept:
            if self.series.last_step is None or self.series.last_step >= first_step:
                self.series = self._fresh()
            return
        before, readings = self._kept.pop()
        part = readings.until(first_step)
        self.series = deepcopy(before)
        self.series.push_readings(part)
        self._kept.append((before, part))
