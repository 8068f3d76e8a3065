"""From what single lines tell to records: which attempt each belongs to, and one sample per step for all ranks.

A log holds one or more lives of the process group, appended. A new attempt begins where the program says that it
starts, or where the steps go back. A step is held until the next one begins where other ranks may yet report it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from sentinel.sources.events import Announced, Ended, Evaluated, Event, Reading, Saved
from sentinel.sources.starts import facts_of_start
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunFinished, RunStarted, Sample, Validation

__all__ = ["Assembler"]

_MOST_RANKS = 1 << 17
"""Readings of one step that are put together; a log that repeats a step for ever has no more of it."""

_LATE_STEPS = 4
"""A rank's line may come after others have gone on, by so many logged steps: that is no restart."""


class Assembler:
    """Takes events in the order of the log and gives records."""

    def __init__(self, *, one_writer: bool) -> None:
        self._one_writer = one_writer
        self._attempt = 0
        self._held: Reading | None = None
        self._losses: list[float] = []
        self._ranks: set[str | None] = set()
        self._newest: dict[str | None, int] = {}
        self._past: deque[tuple[int, float]] = deque(maxlen=_LATE_STEPS)
        self._gap: int | None = None
        self._announced: Announced | None = None
        self._saved: deque[int] = deque(maxlen=64)

    @property
    def last_step(self) -> int:
        """The newest step that was taken; 0 before the first."""
        if self._held is not None:
            return self._held.step
        return self._past[-1][0] if self._past else 0

    def take(self, event: Event) -> list[Record]:
        """The records that are complete with this event."""
        if type(event) is Reading:
            return self._reading(event)
        if isinstance(event, Announced):
            return self._announce(event)
        records = self.settle()
        attempt, step = max(self._attempt, 1), self.last_step
        if isinstance(event, Saved):
            self._saved.append(event.step)
            saved = CheckpointSaved(
                attempt=attempt, global_step=event.step, time_unix_s=event.time_unix_s, tag=event.tag
            )
            return [*records, saved]
        if isinstance(event, Evaluated):
            at = step if event.step is None else event.step
            validated = Validation(attempt=attempt, global_step=at, time_unix_s=event.time_unix_s, loss=event.loss)
            return [*records, validated]
        if isinstance(event, Ended) and self._attempt:
            ended = RunFinished(attempt=attempt, global_step=step, time_unix_s=event.time_unix_s, reason=event.reason)
            return [*records, ended]
        return records

    def settle(self) -> list[Record]:
        """The step that is held, if any: nothing more is expected of it."""
        held = self._held
        if held is None:
            return []
        loss, spread = held.loss, None
        if len(self._losses) > 1:
            loss = sum(self._losses) / len(self._losses)
            spread = max(self._losses) - min(self._losses) if math.isfinite(loss) else math.nan
        self._held = None
        self._past.append((held.step, held.loss))
        return [
            Sample(attempt=self._attempt, global_step=held.step, loss=loss, loss_spread=spread, **held.fields),
        ]

    def _reading(self, reading: Reading) -> list[Record]:
        current = self.last_step
        if self._attempt and self._announced is None and reading.step <= current:
            if self._is_repeated(reading) or self._is_late(reading):
                return []
            records = [*self.settle(), *self._begin(reading, went_back=True)]
        elif self._attempt and not self._starts_anew(reading, current):
            records = self.settle()
            gap = reading.step - current
            if current and gap > 0 and (self._gap is None or gap < self._gap):
                self._gap = gap
        else:
            records = [*self.settle(), *self._begin(reading, went_back=self._attempt > 0 and reading.step <= current)]
        self._held, self._losses, self._ranks = reading, [reading.loss], {reading.rank}
        self._newest[reading.rank] = reading.step
        if self._one_writer and reading.rank is None:  # nobody else will report it
            records += self.settle()
        return records

    def _is_repeated(self, reading: Reading) -> bool:
        """Whether it is the step that is held, from another rank; it is added to it then."""
        held = self._held
        if held is None or reading.step != held.step:
            return False
        same_loss = _same(reading.loss, held.loss)
        if reading.rank is not None and reading.rank in self._ranks:
            return same_loss
        if reading.rank is None and self._one_writer:
            return same_loss
        if len(self._losses) < _MOST_RANKS:
            self._losses.append(reading.loss)
            self._ranks.add(reading.rank)
            self._newest[reading.rank] = reading.step
        return True

    def _is_late(self, reading: Reading) -> bool:
        """Whether it is a rank's line of a step that the others have left behind; it is passed over then."""
        known = next((past for past in self._past if past[0] == reading.step), None)
        if known is None:
            return False
        if reading.rank is not None:
            if self._newest.get(reading.rank, -1) < reading.step:
                self._newest[reading.rank] = reading.step
                return True
            return self._held is None and known is self._past[-1] and _same(known[1], reading.loss)
        if self._one_writer:
            return self._held is None and known is self._past[-1] and _same(known[1], reading.loss)
        return _same(known[1], reading.loss) or (self._held is None and known is self._past[-1])

    def _announce(self, event: Announced) -> list[Record]:
        before = self._announced
        if before is None or (event.certain and before.certain and before.facts.keys() & event.facts.keys()):
            merged: dict[str, Any] = dict(event.facts)
        else:  # the arguments, then what was loaded
            merged = {**before.facts, **event.facts}
        self._announced = Announced(
            facts=merged,
            certain=event.certain or (before is not None and before.certain),
            time_unix_s=event.time_unix_s,
            interval=event.interval or (before.interval if before else None),
        )
        return self.settle()

    def _starts_anew(self, reading: Reading, current: int) -> bool:
        """Whether what was announced is the start of an attempt. A load that the steps do not follow is not."""
        announced = self._announced
        if announced is None or announced.certain:
            return announced is not None
        resumed = announced.facts.get("resumed_from") or 0
        if reading.step <= current or resumed >= current:
            return True
        self._announced = None
        return False

    def _begin(self, reading: Reading, *, went_back: bool) -> list[Record]:
        announced = self._announced or Announced()
        parent = self._attempt or None
        self._announced = None
        self._attempt += 1
        facts = dict(announced.facts)
        interval = announced.interval or self._gap or 1
        if "resumed_from" not in facts and (went_back or announced.interval is not None):
            facts["resumed_from"] = self._resumed_from(reading.step, interval)
        if facts.get("resumed_from") is None:
            parent = None
        facts = facts_of_start(facts, reading, interval)
        self._gap = announced.interval or self._gap
        self._past.clear()
        self._newest.clear()
        at = announced.time_unix_s if math.isfinite(announced.time_unix_s) else reading.fields["time_unix_s"]
        if not went_back and all(value is None for value in facts.values()) and parent is None:
            return []
        return [RunStarted(attempt=self._attempt, time_unix_s=at, parent_attempt=parent, **facts)]

    def _resumed_from(self, first: int, interval: int) -> int | None:
        """The checkpoint that lies just before the first step, as far as one is known of; else one interval before."""
        saved = [step for step in self._saved if first - interval <= step < first]
        step = max(saved) if saved else first - interval
        return step if step > 0 else None


def _same(loss: float, other: float) -> bool:
    return loss == other or (math.isnan(loss) and math.isnan(other))
