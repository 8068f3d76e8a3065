"""Alerts beside the incidents, over time: turns that fail again and again, a job that is gone or hangs.

The incident log records them as `alert_firing` and `alert_resolved`; so a restarted daemon knows what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sentinel.plan.incident import Event

Severity = Literal["warning", "critical"]  # critical: nothing goes on before a person does something

# watch_failing: Slurm does not answer, or an action fails again and again; down: the job is gone and sentinel does not
# start it; stalled: it is there and does nothing; blind: the readings are away; overlap: two of the run's attempts
# train at the same time; unknown: the witnesses of its life contradict one another, or the job is another account's;
# paging: pages can't be written to the outbox of a channel; bad_start: the newest attempt does not go on with the run;
# early_warning: signals rise together, and a divergence may follow
AlertTopic = Literal[
    "watch_failing", "down", "stalled", "blind", "overlap", "unknown", "paging", "bad_start", "early_warning"
]
AGAIN_S = 3600.0  # seconds after which a failure that lasts is alerted to once more


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The state of one topic at this look."""

    topic: AlertTopic
    reason: str | None = None  # what is wrong, as a sentence; None where nothing is, or not any more
    severity: Severity = "critical"
    within_s: float = 0.0  # seconds for which it may last before a person is alerted


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """What is wrong, while it lasts."""

    topic: AlertTopic
    severity: Severity
    reason: str  # the last one, as a sentence
    since_unix_s: float
    alerted_unix_s: float | None = None  # when a person was last alerted; None: not yet


def updated(
    states: Mapping[str, AlertState], alerts: Iterable[Alert], now_unix_s: float
) -> tuple[dict[str, AlertState], tuple[AlertState, ...], tuple[AlertState, ...]]:
    """The states after these alerts; those to alert a person to now; those that a person was alerted to and that are
    over. A topic without an alert stays as it is: nothing is known of it now."""
    known, due, over = dict(states), list[AlertState](), list[AlertState]()
    for alert in alerts:
        topic, severity, reason = alert.topic, alert.severity, alert.reason
        before = known.pop(topic, None)
        if reason is None:
            if before is not None and before.alerted_unix_s is not None:
                over.append(before)
            continue
        new = AlertState(topic=topic, severity=severity, reason=reason, since_unix_s=now_unix_s)
        state = new if before is None else replace(before, severity=severity, reason=reason)
        if is_due(state, now_unix_s, within_s=alert.within_s):
            state = replace(state, alerted_unix_s=now_unix_s)
            due.append(state)
        known[alert.topic] = state
    return known, tuple(due), tuple(over)


def is_due(state: AlertState, now_unix_s: float, *, within_s: float) -> bool:
    """Whether to alert a person now: it has lasted for `within_s`, and no alert was sent yet. `watch_failing` is sent
    again every hour; the others (a job that is gone) once."""
    if state.alerted_unix_s is not None:
        return state.topic == "watch_failing" and now_unix_s - state.alerted_unix_s >= AGAIN_S
    return now_unix_s - state.since_unix_s >= within_s


def alert_states(events: Iterable[Event]) -> dict[str, AlertState]:
    """Topic -> the last alert of the incident log, where it is not resolved."""
    firing: dict[str, AlertState] = {}
    for event in events:
        if event["event"] == "alert_firing":
            since, at, facts = event["since_unix_s"], event["time_unix_s"], ("topic", "severity", "reason")
            last = {key: event[key] for key in facts}
            firing[event["topic"]] = AlertState(**last, since_unix_s=float(since), alerted_unix_s=float(at))
        elif event["event"] == "alert_resolved":
            firing.pop(event["topic"], None)
    return firing


def unsettled(events: Sequence[Event], now_unix_s: float, *, within_s: float) -> bool:
    """Whether the last action has failed, not longer than `within_s` ago, and nothing has come of it since. Such a
    turn, in which nothing was tried, is no success yet. After that long without another try it is history."""
    for event in reversed(events):
        if event["event"] in ("done", "applied", "stopped", "closed"):
            return False
        if event["event"] == "failed":
            return now_unix_s - float(event["time_unix_s"]) < within_s
    return False
