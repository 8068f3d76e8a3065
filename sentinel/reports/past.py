"""A run's past: its readings in columns, the other records of its trainer, its incident log, and the verdict on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.analysis.correlation.columns import ratios
from sentinel.judge.analysis.first_mover import moved_before
from sentinel.judge.events import Event, EventKind
from sentinel.judge.history import Attempt, History
from sentinel.judge.readings import CARRIED, COLUMNS, Readings, descent
from sentinel.judge.reference import Reference
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import VerdictKind, judge_past
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import IncidentEvent, Opened
from sentinel.sources.column_source import ColumnSource


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    run: str
    thresholds: Thresholds
    planned: tuple[int, ...] = ()  # steps of planned changes
    references: tuple[Reference, ...] = ()
    # Position in the data order (consumed_samples before it) to the sample's text; None where they are not known.
    texts: Mapping[int, str] | None = None
    # A rollback's id to how it changed the job script, as a diff.
    scripts: Mapping[str, str] = field(default_factory=dict)
    bisects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # incident to the report of its bisect
    run_option: str = "--run NAME"  # how the run is named on the command line, for the commands that the page shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """All that a run has left behind, in the order in which it was made."""

    stretches: tuple[Readings, ...]  # each of one attempt; with a loss ratio, counted anew where the source has none
    history: History  # the attempts with all that is no sample: starts, layers, validations, checkpoints, ends
    # The incident log, with what moved first where an older version has not recorded it, by the same analysis.
    events: tuple[IncidentEvent, ...]
    incidents: tuple[Incident, ...]
    unreadable: int  # lines of the source that could not be read
    notes: tuple[str, ...]

    def of_attempt(self, number: int) -> list[Readings]:
        return [r for r in self.stretches if r.attempt == number]

    def curve(self, attempt: int, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """An attempt's steps, (n,), and what was read at each, (n,); nan where that was not measured."""
        stretches = self.of_attempt(attempt)
        steps = np.concatenate([np.zeros(0, np.int64), *(r.steps for r in stretches)])
        return steps, joined(stretches, name)

    def descent_of(self, number: int) -> list[Readings]:
        """The stretches that the attempt's weights descend from, its own included: as the trainer has reported it, else
        by their steps."""
        known = self.history.attempts.get(number)
        line = {one.number for one, _ in self.history.descent(known)} if known is not None else set()
        return descent([r for r in self.stretches if (r.attempt in line if len(line) > 1 else r.attempt <= number)])


def read_past(source: ColumnSource, events: Sequence[IncidentEvent]) -> Past:
    source.fields = (*COLUMNS, *CARRIED)
    stretches = [readings for readings in source if len(readings)]
    history = History()
    for readings in stretches:
        history.attempts.setdefault(readings.attempt, Attempt(readings.attempt))
    for record in source.others:
        history.push(record)
    past = Past(
        stretches=tuple(_with_ratios(stretches)),
        history=history,
        events=tuple(events),
        incidents=fold(events),
        unreadable=source.unreadable,
        notes=tuple(source.notes),
    )
    if not any(_lacks_moved_first(event) for event in events):
        return past
    analysed = tuple(_with_moved_first(event, past) for event in events)
    return replace(past, events=analysed, incidents=fold(analysed))


def _lacks_moved_first(event: IncidentEvent) -> bool:
    """Whether an older version has opened the incident: it recorded no more than names, of another analysis."""
    return isinstance(event, Opened) and event.moved_first is None and event.onset_range is not None


def _with_moved_first(event: IncidentEvent, past: Past) -> IncidentEvent:
    if not isinstance(event, Opened) or event.onset_range is None or not _lacks_moved_first(event):
        return event
    line = past.descent_of(event.attempt)
    return (
        replace(event, moved_first=moved_before(line, event.onset_range, event.baseline.clip_grad)) if line else event
    )


def _with_ratios(stretches: Sequence[Readings]) -> list[Readings]:
    if not stretches:
        return []
    loss, lengths, given = (joined(stretches, name) for name in ("loss", "seqlen", "loss_ratio"))
    found = ratios(np.concatenate([r.steps for r in stretches]), loss, lengths, given)
    parts = np.split(found, np.cumsum([len(r) for r in stretches])[:-1])
    return [
        Readings(
            attempt=readings.attempt,
            steps=readings.steps,
            columns={**readings.columns, "loss_ratio": ratio},
            measured={key: there for key, there in readings.measured.items() if key != "loss_ratio"},
            skipped=readings.skipped,
        )
        for readings, ratio in zip(stretches, parts, strict=True)
    ]


def joined(stretches: Sequence[Readings], name: str) -> Any:
    """One column of all stretches, (n,); nan where it was not measured."""
    return np.concatenate([r.values(name) for r in stretches]) if stretches else np.zeros(0)


def judged(past: Past, settings: PageSettings) -> tuple[dict[str, str | None], list[dict[str, Any]]]:
    """The verdict, its severity and its reason; and the judge's events, each with its attempt and its last step there.
    The last episode may still recover."""
    replay = Replay(settings.thresholds, settings.planned, settings.references)
    found: dict[int, tuple[Event, ...]] = {}
    for readings in past.stretches:
        replay.push(readings)
        found[readings.attempt] = tuple(replay.series.events)
    newest = past.history.latest
    verdict = judge_past(replay.series, newest.end_reason if newest else None)
    findings = [
        _finding(event, number, past)
        for number, events in found.items()
        for event in events
        if event.verdict_step >= int(past.of_attempt(number)[0].steps[0])
    ]
    return {"verdict": str(verdict.kind), "severity": verdict.severity, "reason": verdict.reason}, findings


# Of the events that are a verdict on the steps that they last; a plateau and a planned change are none.
_VERDICTS = {
    EventKind.SPIKE: str(VerdictKind.SPIKE),
    EventKind.DIVERGENCE: str(VerdictKind.DIVERGED),
    EventKind.NAN: str(VerdictKind.DIVERGED),
}


def _finding(event: Event, attempt: int, past: Past) -> dict[str, Any]:
    stretches = past.of_attempt(attempt)
    first, last = int(stretches[0].steps[0]), int(stretches[-1].steps[-1])
    end = last if event.end_step is None else min(event.end_step, last)
    return asdict(event) | {
        "kind": str(event.kind),
        "verdict": _VERDICTS.get(event.kind),
        "attempt": attempt,
        "onset_step": event.onset_step,
        "from_step": max(first, event.onset_step),  # of what the attempt made: an onset may lie before it
        "until_step": max(end, event.onset_step),
        "lasts": event.end_step is None,
    }
