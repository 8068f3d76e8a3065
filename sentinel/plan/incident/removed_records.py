"""What the incident log of an older release may hold, and this release reads without ever writing it. Pure.

Rungs that were tried side by side, as probes beside the run (removed in 0.1.0):

    race_begun  the rungs (entrants: decisions, each under its probe's name; until_step, gpu_hours)
    race_ended  why, and whose checkpoints become the run's (winner: probe, or null), or that no probe could run (void)
    decided     `adopts`: the probe that the rollback goes on from
    intent, done, failed    of start_probe, stop_probe and adopt_probe
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sentinel.plan.incident.incident import Event, Incident, SideBySide
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import to_number


def take_removed(incident: Incident, kind: str, event: Event) -> None:
    """Adds an event of rungs that were tried side by side to the incident; any other changes nothing."""
    if kind == "race_begun":
        rungs = {checked_name(e["rollback"], "rollback"): str(e["rung"]) for e in event["entrants"]}
        hours = to_number(event["gpu_hours"], "gpu_hours")
        incident.side_by_side.append(SideBySide(rungs=rungs, until_step=int(event["until_step"]), gpu_hours=hours))
    elif kind == "race_ended":
        winner = None if event["winner"] is None else checked_name(event["winner"]["probe"], "probe")
        void, tried = bool(event.get("void", False)), incident.side_by_side[-1]
        incident.side_by_side[-1] = replace(tried, over=True, void=void, winner=winner)


def probe_of(decided: Event) -> str | None:
    """The probe whose checkpoints a decision makes the run's; None where it restarts from its target."""
    adopts = decided.get("adopts")
    return None if adopts is None else checked_name(adopts["probe"], "probe")


TOLD: Mapping[str, Callable[[Event], str]] = {
    "race_begun": lambda e: f"{', '.join(repr(r['rung']) for r in e['entrants'])} race to step {e['until_step']}",
    "race_ended": lambda e: f"the race has ended: {e['reason']}",
}
DONE: Mapping[str, Callable[[Event], str]] = {
    "start_probe": lambda a: f"started the probe {a['probe']}",
    "stop_probe": lambda a: f"stopped the probe {a['probe']}",
    "adopt_probe": lambda a: f"made the checkpoints of {a['probe']} up to {a['tag']} the run's",
}
