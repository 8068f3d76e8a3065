"""Events that a page is made of."""

from __future__ import annotations

from typing import Any


def event(kind: str, time_unix_s: float = 100.0, incident: str | None = "incident-1", **facts: Any) -> dict[str, Any]:
    return {"event": kind, "incident": incident, "time_unix_s": time_unix_s, **facts}


def firing(topic: str = "watch_failing", time_unix_s: float = 1000.0, severity: str = "warning") -> dict[str, Any]:
    return event(
        "alert_firing", time_unix_s, None, topic=topic, severity=severity, reason="no answer", since_unix_s=50.0
    )


def resolved(topic: str = "watch_failing", time_unix_s: float = 2000.0) -> dict[str, Any]:
    return event("alert_resolved", time_unix_s, None, topic=topic, reason="it lasted 1950 s")
