"""What somebody has to know of that is no divergence: a turn that fails again and again, a job that is gone or hangs.

The incident log has two events of it, `troubled` and `relieved`; so a daemon that is started again knows what was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["AGAIN_S", "Severity", "Trouble", "TroubleTopic", "struggling", "troubles_of", "unsettled"]

Severity = Literal["warning", "critical"]
"""warning: somebody should know; critical: nothing goes on before a person does something."""

TroubleTopic = Literal["struggling", "down", "stalled", "blind", "overlap", "unknown", "paging"]
"""struggling: Slurm does not answer, or an action fails again and again; down: the job is gone and sentinel does not
start it; stalled: it is there and does nothing; blind: the readings are away; overlap: two of the run's attempts train
at the same time; unknown: the witnesses of its life contradict one another, or the job is another account's; paging:
pages can't be written to the outbox of a channel."""

AGAIN_S = 3600.0
"""Seconds after which a struggle that lasts is told once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One of these, while it lasts."""

    topic: TroubleTopic
    severity: Severity
    reason: str
    """The last one, as a sentence."""

    since_unix_s: float
    told_unix_s: float | None = None
    """When somebody was told of it last; None while nobody was."""


def struggling(trouble: Trouble, now_unix_s: float, *, within_s: float) -> bool:
    """Whether somebody is to be told now: it has lasted for `within_s`, and was not told yet.

    What was tried again and again is told again every hour; what just lasts (a job that is gone) is told once.
    """
    if trouble.told_unix_s is not None:
        return trouble.topic == "struggling" and now_unix_s - trouble.told_unix_s >= AGAIN_S
    return now_unix_s - trouble.since_unix_s >= within_s


def troubles_of(events: Iterable[Mapping[str, Any]]) -> dict[str, Trouble]:
    """Topic -> what the incident log says was told of it, and is not over."""
    told: dict[str, Trouble] = {}
    for event in events:
        if event["event"] == "troubled":
            told[event["topic"]] = Trouble(
                topic=event["topic"],
                severity=event["severity"],
                reason=event["reason"],
                since_unix_s=float(event["since_unix_s"]),
                told_unix_s=float(event["time_unix_s"]),
            )
        elif event["event"] == "relieved":
            told.pop(event["topic"], None)
    return told


def unsettled(events: Sequence[Mapping[str, Any]], now_unix_s: float, *, within_s: float) -> bool:
    """Whether the last action has failed, not longer than `within_s` ago, and nothing has come of it since.

    Such a turn, in which nothing was tried, is no success yet. After that long without another try it is history.
    """
    for event in reversed(events):
        if event["event"] in ("done", "applied", "stopped", "closed"):
            return False
        if event["event"] == "failed":
            return now_unix_s - float(event["time_unix_s"]) < within_s
    return False
