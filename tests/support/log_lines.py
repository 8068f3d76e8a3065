"""Lines of the incident log: as a script reads them, and as events from the few keys that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.vocabulary.numbers import load_object

_OVERRIDES = {"schema": 1, "incident": "incident-1", "rollback": "incident-1-r1", "anchor": {"global_step": 20}}
_DECISION = {"rollback": "incident-1-r1", "rung": "reseed", "hypothesis": "the data", "overrides": _OVERRIDES}
_DECISION |= {"target": {"tag": "global_step20", "global_step": 20}, "changes": [], "lost_steps": 30}
_OF_ROLLBACK, _WHY = {"rollback": "incident-1-r1"}, {"reason": "a reason"}
ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "opened": {"attempt": 1, "led_by": [], "baseline": {}, **_WHY}
    | dict.fromkeys(("onset_range", "alarm_step", "onset_tokens", "best_mean")),
    "decided": _DECISION,
    "proposed": {**_DECISION, "digest": "0" * 64},
    "expired": {"digest": "0" * 64},
    "applied": _OF_ROLLBACK,
    **{kind: {**_OF_ROLLBACK, "attempt": 2} for kind in ("proved", "not_verified", "not_proved")},
    "rung_failed": {**_OF_ROLLBACK, **_WHY},
    "failed": _WHY,
    "stopped": _WHY,
    "closed": {"outcome": "recovered", **_WHY},
    "alert_firing": {"topic": "down", "since_unix_s": 1.0, **_WHY},
    "alert_resolved": {"topic": "down", **_WHY},
}
"""Keys that every release has written, by the event."""


def logged(*lines: Mapping[str, Any]) -> tuple[IncidentEvent, ...]:
    """The events of these lines, each with the keys that a line of its kind always has."""
    return tuple(event_of({"incident": None, "time_unix_s": 1.0, **_always(line), **line}) for line in lines)


def _always(line: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = line.get("event", "")
    return ALWAYS.get("decided" if kind == "shadow" and "rung" in line else kind, {})


def lines_of(log: Path) -> list[dict[str, Any]]:
    """What a script reads of an incident log; nothing where there is none."""
    return [load_object(line) for line in log.read_text().splitlines()] if log.exists() else []
