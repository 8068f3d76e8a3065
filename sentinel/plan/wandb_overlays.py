"""From the incident log to what is drawn over a run's curves elsewhere: the steps from onset to alarm, and the story.

An incident without an onset, such as a person's own rollback, has no such steps and is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.plan.sentences import story

__all__ = ["Overlay", "overlays"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """One incident of one run."""

    run: str
    incident: str
    first_step: int
    """The early end of the onset."""

    last_step: int
    """Where it was seen."""

    alarm_unix_s: float
    """When it was: the same steps may have been made before it and after it, by other attempts."""

    outcome: str
    """open, stopped, or what it was closed as."""

    text: str
    """What happened, a sentence on each line."""

    @property
    def tags(self) -> list[str]:
        """What it is found by in a table of runs."""
        return ["sentinel", self.incident, self.outcome]


def overlays(run: str, events: Sequence[Mapping[str, Any]]) -> tuple[Overlay, ...]:
    """The run's incidents that have an onset, in the order of the log."""
    made = []
    for event in events:
        if event["event"] != "opened" or not event.get("onset_range"):
            continue
        first, last = event["onset_range"]
        made.append(
            Overlay(
                run=run,
                incident=event["incident"],
                first_step=int(first),
                last_step=int(max(last, event.get("alarm_step") or last)),
                alarm_unix_s=float(event["time_unix_s"]),
                outcome=_outcome(event["incident"], events),
                text="\n".join(told.sentence for told in story(events, event["incident"])),
            )
        )
    return tuple(made)


def _outcome(incident: str, events: Iterable[Mapping[str, Any]]) -> str:
    outcome = "open"
    for event in events:
        if event.get("incident") == incident and event["event"] in ("stopped", "closed"):
            outcome = str(event.get("outcome") or event["event"])
    return outcome
