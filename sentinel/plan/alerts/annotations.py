"""From the incident log to marks on Grafana's time axis, and to overlays on the step axis of W&B."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sentinel.plan.alerts.sentences import sentence, story
from sentinel.plan.incident.log_events import Decided, IncidentEvent, Opened
from sentinel.plan.incident.log_outcomes import Applied, Closed, IncidentStopped
from sentinel.vocabulary.texts import for_people

# recovery: from the restart that helped to the incident's closing; closed: any other end of one
Kind = Literal["onset", "alarm", "rollback", "recovery", "stopped", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One mark on the time axis of one run."""

    run: str
    incident: str
    kind: Kind
    key: str  # what makes it this one among the run's: incident-1/alarm, incident-1-r2/rollback. It never changes.
    time_unix_s: float
    end_unix_s: float  # the same as `time_unix_s` where it is a moment and no stretch
    text: str

    @property
    def tags(self) -> tuple[str, ...]:
        return ("sentinel", f"run:{self.run}", f"incident:{self.incident}", self.kind, f"key:{self.key}")


def onset_steps(events: Iterable[IncidentEvent]) -> frozenset[tuple[int, int]]:
    """(attempt, global_step) of every end of an onset: those whose time is asked for."""
    opened = [event for event in events if isinstance(event, Opened)]
    return frozenset((event.attempt, step) for event in opened for step in event.onset_range or ())


def marks(run: str, events: Iterable[IncidentEvent], when: Mapping[tuple[int, int], float]) -> tuple[Annotation, ...]:
    """The marks of a run's incidents, in the order of the log; one for each key, which is the last of its kind. `when`
    is {(attempt, global_step): Unix time in seconds}: an onset is known by its step, and makes no mark where that
    step's time is not known."""
    made: dict[str, Annotation] = {}
    restarted: dict[str, float] = {}  # {incident: when its newest rollback was applied}
    for event in events:
        if (incident := event.incident) is None:
            continue
        now = event.time_unix_s
        rollback = f"{event.rollback}/rollback" if isinstance(event, Decided | Applied) else ""
        if isinstance(event, Applied):
            restarted[incident] = now
            if rollback in made:  # its decision says more of it than its end does
                made[rollback] = replace(made[rollback], end_unix_s=now)
            continue
        text = for_people(f"{incident}: {sentence(event)}")
        for kind, begin, end in _stretches(event, when, restarted.get(incident, now)):
            key = rollback if kind == "rollback" else f"{incident}/{kind}"
            times = {"time_unix_s": begin, "end_unix_s": end}
            made[key] = Annotation(run=run, incident=incident, kind=kind, key=key, text=text, **times)
    return tuple(made.values())


def _stretches(
    event: IncidentEvent, when: Mapping[tuple[int, int], float], restarted: float
) -> Iterable[tuple[Kind, float, float]]:
    """What an event marks, each with its begin and its end in Unix seconds."""
    now = event.time_unix_s
    match event:
        case Opened():
            ends = [when.get((event.attempt, step)) for step in event.onset_range or ()]
            if known := [end for end in ends if end is not None]:
                yield "onset", min(known), max(known)
            yield "alarm", now, now
        case Decided():
            yield "rollback", now, now
        case IncidentStopped():
            yield "stopped", now, now
        case Closed(outcome="recovered"):
            yield "recovery", restarted, now
        case Closed():
            yield "closed", now, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """One incident of one run, from its onset to its alarm."""

    run: str
    incident: str
    first_step: int  # the early end of the onset
    last_step: int  # where it was seen
    alarm_unix_s: float  # when it was: the same steps may have been made before it and after it, by other attempts
    outcome: str  # open, stopped, or what it was closed as
    text: str  # what happened, a sentence on each line

    @property
    def tags(self) -> list[str]:
        return ["sentinel", self.incident, self.outcome]


def overlays(run: str, events: Sequence[IncidentEvent]) -> tuple[Overlay, ...]:
    """The run's incidents that have an onset (a person's own rollback has none), in the order of the log."""
    made = []
    for opened in events:
        if not isinstance(opened, Opened) or opened.onset_range is None:
            continue
        incident, (first, last) = opened.incident, opened.onset_range
        ends = [e for e in events if e.incident == incident and isinstance(e, IncidentStopped | Closed)]
        overlay = Overlay(
            run=run,
            incident=incident,
            first_step=first,
            last_step=max(last, opened.alarm_step or last),
            alarm_unix_s=opened.time_unix_s,
            outcome=_outcome(ends[-1]) if ends else "open",
            text=for_people("\n".join(told.sentence for told in story(events, incident))),
        )
        made.append(overlay)
    return tuple(made)


def _outcome(event: IncidentStopped | Closed) -> str:
    return event.outcome if isinstance(event, Closed) else event.kind
