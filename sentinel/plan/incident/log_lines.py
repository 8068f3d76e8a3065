"""How a line of the incident log is read: of this release, of an older one, and as far as possible of a newer one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sentinel.plan.incident import log_events, log_outcomes
from sentinel.plan.incident.log_events import IncidentEvent, ShadowRefused, UnreadEvent
from sentinel.plan.incident.log_outcomes import FORM, UNDO, UndoIntent
from sentinel.vocabulary.codec import read
from sentinel.vocabulary.errors import LineError, SentinelError
from sentinel.vocabulary.names import why_not_a_name
from sentinel.vocabulary.numbers import UNIX_SECONDS, to_number

_OLD_KINDS = {"troubled": "alert_firing", "relieved": "alert_resolved"}  # names in older logs, and what they are now
_OLD_TOPICS = {"struggling": "watch_failing"}
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, SentinelError)
_CLASSES = {
    cls.kind: cls
    for module in (log_events, log_outcomes)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, IncidentEvent) and vars(cls).get("kind") and cls is not ShadowRefused
}


def event_of(data: Mapping[str, Any]) -> IncidentEvent:
    """The event of a line, by its present name. LineError where the line lacks what every reader of the log relies on;
    an `UnreadEvent` where the rest is of another version, or damaged."""
    line, time_unix_s = _by_new_names(data), _checked_time(data)
    keys, incident, why = tuple(line), line.get("incident"), None
    if (cls := _class_of(line)) is not None:
        try:
            event = read(cls, line, "", FORM)
            again = event.to_json()  # what a class leaves out, or writes otherwise than an older release, is kept
            more = {key: value for key, value in line.items() if key not in again or value != again[key]}
            return replace(event, keys=keys, more=more)
        except _UNREADABLE as error:
            why = str(error) if isinstance(error, SentinelError) else repr(error)
    return UnreadEvent(incident=incident, time_unix_s=time_unix_s, why=why, keys=keys, more=line)


def _class_of(line: Mapping[str, Any]) -> type[IncidentEvent] | None:
    kind, action = line["event"], line.get("action")
    if kind == "shadow" and "rung" not in line:
        return ShadowRefused
    if kind == "intent" and isinstance(action, Mapping) and action.get("kind") == UNDO:
        return UndoIntent
    return _CLASSES.get(kind)


def _by_new_names(data: Mapping[str, Any]) -> dict[str, Any]:
    kind, topic, incident = data.get("event"), data.get("topic"), data.get("incident")
    if not isinstance(kind, str):
        raise LineError(f"event should be a string, not {type(kind).__name__}")
    if not isinstance(topic, str | None):
        raise LineError(f"topic should be a string, not {type(topic).__name__}")
    if incident is not None:
        why = why_not_a_name(incident) if isinstance(incident, str) else "should be a string"
        if why is not None:
            raise LineError(f"incident {why}")
    new = {"event": _OLD_KINDS.get(kind, kind), **({} if topic is None else {"topic": _OLD_TOPICS.get(topic, topic)})}
    return {**data, **new}


def _checked_time(data: Mapping[str, Any]) -> float:
    time_unix_s = to_number(data.get("time_unix_s"), "time_unix_s")
    if time_unix_s is None or math.isnan(time_unix_s):
        raise LineError("time_unix_s is missing")
    if time_unix_s not in UNIX_SECONDS:
        raise LineError(f"time_unix_s should be {UNIX_SECONDS}, not {time_unix_s:g}")
    return time_unix_s
