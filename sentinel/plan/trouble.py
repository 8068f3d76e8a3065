"""What a person has to know of that is no divergence: turns that fail again and again, a job that is gone or hangs.

The incident log has two events of it, `troubled` and `relieved`; so a daemon that is started again knows what was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sentinel.plan.incident import Event

Severity = Literal["warning", "critical"]  # critical: nothing goes on before a person does something

# struggling: Slurm does not answer, or an action fails again and again; down: the job is gone and sentinel does not
# start it; stalled: it is there and does nothing; blind: the readings are away; overlap: two of the run's attempts
# train at the same time; unknown: the witnesses of its life contradict one another, or the job is another account's;
# paging: pages can't be written to the outbox of a channel; bad_start: the newest attempt does not go on with the run;
# early_warning: signals rise together, and a divergence may follow
TroubleTopic = Literal[
    "struggling", "down", "stalled", "blind", "overlap", "unknown", "paging", "bad_start", "early_warning"
]
AGAIN_S = 3600.0  # seconds after which a struggle that lasts is told once more


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The state of one topic at this look."""

    topic: TroubleTopic
    reason: str | None = None  # what is wrong, as a sentence; None where nothing is, or not any more
    severity: Severity = "critical"
    within_s: float = 0.0  # seconds for which it may last before a person is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong, while it lasts."""

    topic: TroubleTopic
    severity: Severity
    reason: str  # the last one, as a sentence
    since_unix_s: float
    alerted_unix_s: float | None = None  # when a person was told of it last; None while none was


def updated(
    troubles: Mapping[str, Trouble], alerts: Iterable[Alert], now_unix_s: float
) -> tuple[dict[str, Trouble], tuple[Trouble, ...], tuple[Trouble, ...]]:
    """The troubles as these alerts leave them; those of which a person is to be told now; those told of that are over.
    A topic without an alert stays as it is: nothing is known of it now."""
    known, due, over = dict(troubles), list[Trouble](), list[Trouble]()
    for alert in alerts:
        topic, severity, reason = alert.topic, alert.severity, alert.reason
        before = known.pop(topic, None)
        if reason is None:
            if before is not None and before.alerted_unix_s is not None:
                over.append(before)
            continue
        new = Trouble(topic=topic, severity=severity, reason=reason, since_unix_s=now_unix_s)
        trouble = new if before is None else replace(before, severity=severity, reason=reason)
        if is_due(trouble, now_unix_s, within_s=alert.within_s):
            trouble = replace(trouble, alerted_unix_s=now_unix_s)
            due.append(trouble)
        known[alert.topic] = trouble
    return known, tuple(due), tuple(over)


def is_due(trouble: Trouble, now_unix_s: float, *, within_s: float) -> bool:
    """Whether a person is to be told now: it has lasted for `within_s`, and nobody was told yet. What was tried again
    and again is told again every hour; what just lasts (a job that is gone) is told once."""
    if trouble.alerted_unix_s is not None:
        return trouble.topic == "struggling" and now_unix_s - trouble.alerted_unix_s >= AGAIN_S
    return now_unix_s - trouble.since_unix_s >= within_s


def troubles_of(events: Iterable[Event]) -> dict[str, Trouble]:
    """Topic -> what the incident log says was told of it, and is not over."""
    told: dict[str, Trouble] = {}
    for event in events:
        if event["event"] == "troubled":
            since, at, facts = event["since_unix_s"], event["time_unix_s"], ("topic", "severity", "reason")
            last = {key: event[key] for key in facts}
            told[event["topic"]] = Trouble(**last, since_unix_s=float(since), alerted_unix_s=float(at))
        elif event["event"] == "relieved":
            told.pop(event["topic"], None)
    return told


def unsettled(events: Sequence[Event], now_unix_s: float, *, within_s: float) -> bool:
    """Whether the last action has failed, not longer than `within_s` ago, and nothing has come of it since. Such a
    turn, in which nothing was tried, is no success yet. After that long without another try it is history."""
    for event in reversed(events):
        if event["event"] in ("done", "applied", "stopped", "closed"):
            return False
        if event["event"] == "failed":
            return now_unix_s - float(event["time_unix_s"]) < within_s
    return False
