"""restarts_of(events, records): how each rollback restarted the training, and how many seconds that took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.plan.incident.log_events import Decided, IncidentEvent
from sentinel.vocabulary.sample import Record, RunStarted, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRestart:
    rollback: str
    in_place: bool  # As the trainer reported it; else by a new job
    first_step_s: float  # From the decision to the end of the first new step, by the two clocks

    @property
    def sentence(self) -> str:
        how = "resumed in place" if self.in_place else "started by a new job"
        return f"{self.rollback} was {how}: {self.first_step_s:.1f} s from the decision to the first new step"


def restarts_of(events: Iterable[IncidentEvent], records: Iterable[Record]) -> tuple[MeasuredRestart, ...]:
    """In the order in which the trainer reported them; a rollback without a new step yet is left out. Of `records` the
    starts and each attempt's first sample are needed, a start before its samples."""
    decided_unix_s = {event.rollback: event.time_unix_s for event in events if isinstance(event, Decided)}
    starts: dict[int, RunStarted] = {}
    made: dict[str, MeasuredRestart] = {}
    for record in records:
        if isinstance(record, RunStarted):
            starts[record.attempt] = record
        elif isinstance(record, Sample) and (started := starts.pop(record.attempt, None)) is not None:
            rollback = started.rollback
            decided = decided_unix_s.get(rollback) if rollback is not None else None
            if rollback is not None and decided is not None and rollback not in made:
                seconds = record.time_unix_s - decided
                made[rollback] = MeasuredRestart(rollback=rollback, in_place=started.in_place, first_step_s=seconds)
    return tuple(made.values())
