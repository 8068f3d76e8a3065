"""The verdict over the run: what the judge found in each attempt, and where the run stands now."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sentinel.judge.events import Event
from sentinel.judge.replay import Replay
from sentinel.judge.verdict import judge_past
from sentinel.reports.triage.past import Asked, Past

__all__ = ["Timeline", "timeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What a replay of the run tells, sample for sample as it would have been live."""

    verdict: str
    severity: str
    """info, warning or critical."""

    reason: str
    findings: tuple[dict[str, Any], ...]
    """The judge's events, each with the attempt that it happened in and its last step there."""


def timeline(past: Past, asked: Asked) -> Timeline:
    """Judges the whole past; the last episode may still heal."""
    replay = Replay(asked.thresholds, asked.planned, asked.references)
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
    kind, reason = str(verdict.kind), verdict.reason
    return Timeline(verdict=kind, severity=verdict.severity, reason=reason, findings=tuple(findings))


def _finding(event: Event, attempt: int, past: Past) -> dict[str, Any]:
    last = int(past.of_attempt(attempt)[-1].steps[-1])
    end = last if event.end_step is None else min(event.end_step, last)
    return asdict(event) | {
        "kind": str(event.kind),
        "attempt": attempt,
        "onset_step": event.onset_step,
        "until_step": max(end, event.onset_step),
        "lasts": event.end_step is None,
    }
