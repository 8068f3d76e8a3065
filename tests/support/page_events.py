"""Events that a page is made of."""

from __future__ import annotations

from typing import Any

from sentinel.plan.incident.log_events import IncidentEvent
from tests.support.log_lines import logged


def event(kind: str, time_unix_s: float = 100.0, incident: str | None = "incident-1", **facts: Any) -> IncidentEvent:
    (made,) = logged({"event": kind, "incident": incident, "time_unix_s": time_unix_s, **facts})
    return made


def firing(topic: str = "watch_failing", time_unix_s: float = 1000.0, severity: str = "warning") -> IncidentEvent:
    return event(
        "alert_firing", time_unix_s, None, topic=topic, severity=severity, reason="no answer", since_unix_s=50.0
    )


def resolved(topic: str = "watch_failing", time_unix_s: float = 2000.0) -> IncidentEvent:
    return event("alert_resolved", time_unix_s, None, topic=topic, reason="it lasted 1950 s")
