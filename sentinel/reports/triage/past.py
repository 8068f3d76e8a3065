"""What the page is made of: a run's readings in columns, what else its trainer said, and the incident log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.analysis.correlation.columns import ratios
from sentinel.judge.history import Attempt, History
from sentinel.judge.readings import CARRIED, COLUMNS, Readings, descent
from sentinel.judge.reference import Reference
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.incident import Incident
from sentinel.plan.incident_events import fold
from sentinel.sources.column_source import ColumnSource

__all__ = ["Asked", "Past", "read_past"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which run, and how it is judged."""

    run: str
    thresholds: Thresholds
    planned: tuple[int, ...] = ()
    """Steps at which something was changed on purpose."""

    references: tuple[Reference, ...] = ()
    texts: Mapping[int, str] | None = None
    """Position in the data order (consumed_samples before it) to the sample's text; None where nobody has them."""

    scripts: Mapping[str, str] = field(default_factory=dict)
    """A rollback's id to how it changed the job script, as a diff; empty where none was changed."""

    typed: str = "--run NAME"
    """How the run is named on the command line, for the commands that the page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """All that a run has left behind, in the order in which it was made."""

    stretches: tuple[Readings, ...]
    """Each of one attempt; with a loss ratio, counted anew where the source has none."""

    history: History
    """The attempts with all that is no sample: starts, layers, validations, checkpoints, ends."""

    events: tuple[Mapping[str, Any], ...]
    """The incident log."""

    incidents: tuple[Incident, ...]
    unreadable: int
    """Lines of the source that could not be read."""

    notes: tuple[str, ...]

    @property
    def samples(self) -> int:
        """How many there are, of all attempts."""
        return sum(map(len, self.stretches))

    def of_attempt(self, number: int) -> list[Readings]:
        """The attempt's own stretches."""
        return [r for r in self.stretches if r.attempt == number]

    def descent_of(self, number: int) -> list[Readings]:
        """What the attempt's weights descend from, its own stretches included."""
        return descent([r for r in self.stretches if r.attempt <= number])


def read_past(source: ColumnSource, events: Sequence[Mapping[str, Any]]) -> Past:
    """Reads all there is, once."""
    source.fields = (*COLUMNS, *CARRIED)
    stretches = [readings for readings in source if len(readings)]
    history = History()
    for readings in stretches:
        history.attempts.setdefault(readings.attempt, Attempt(readings.attempt))
    for record in source.others:
        history.push(record)
    return Past(
        stretches=tuple(_with_ratios(stretches)),
        history=history,
        events=tuple(events),
        incidents=fold(events),
        unreadable=source.unreadable,
        notes=tuple(source.notes),
    )


def _with_ratios(stretches: Sequence[Readings]) -> list[Readings]:
    if not stretches:
        return []
    names = ("loss", "seqlen", "loss_ratio")
    loss, lengths, given = (np.concatenate([r.values(name) for r in stretches]) for name in names)
    found = ratios(np.concatenate([r.steps for r in stretches]), loss, lengths, given)
    ends = np.cumsum([len(r) for r in stretches])[:-1]
    return [_with(r, "loss_ratio", part) for r, part in zip(stretches, np.split(found, ends), strict=True)]


def _with(readings: Readings, name: str, column: NDArray[np.float64]) -> Readings:
    return Readings(
        attempt=readings.attempt,
        steps=readings.steps,
        columns={**readings.columns, name: column},
        measured={key: there for key, there in readings.measured.items() if key != name},
        skipped=readings.skipped,
    )
