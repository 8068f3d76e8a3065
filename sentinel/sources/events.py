"""What one line of a log tells, before it is known which attempt it belongs to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import seconds_problem, whole_problem

__all__ = ["Announced", "Ended", "Evaluated", "Event", "Reading", "Saved", "checked"]


@dataclass(slots=True)
class Reading:
    """One step's readings, as one process wrote them."""

    step: int
    """Completed updates."""

    loss: float
    """Nats; nan also where the trainer left it out because it was not a number."""

    rank: str | None = None
    """Which process wrote it; None where the line does not say."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of Sample by their names, but attempt, global_step, loss and loss_spread."""

    total_steps: int | None = None
    """The M of `N/M`."""


@dataclass(slots=True)
class Announced:
    """A start of the program."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of RunStarted by their names. `resumed_from` is there where the log says it, None being "from scratch"."""

    certain: bool = False
    """Whether the program has begun anew; else it is a checkpoint being loaded, which may have other reasons."""

    time_unix_s: float = math.nan
    interval: int | None = None
    """Steps from one line of readings to the next, where the settings say it."""


@dataclass(slots=True)
class Evaluated:
    """A validation loss."""

    loss: float
    step: int | None = None
    """None is "after the last step"."""

    time_unix_s: float = math.nan


@dataclass(slots=True)
class Saved:
    """A checkpoint that is whole."""

    step: int
    tag: str
    time_unix_s: float = math.nan


@dataclass(slots=True)
class Ended:
    """The program says that it has done all its steps."""

    reason: str = "finished"
    time_unix_s: float = math.nan


Event = Reading | Announced | Evaluated | Saved | Ended


def checked(event: Event) -> Event:
    """The event, where its counts and its time can be. LineError: it was read from a line that can't be read."""
    if (why := seconds_problem(_time_of(event))) is not None:
        raise LineError(f"the time {why}")
    if isinstance(event, Reading):
        counts = [event.step, *(value for value in event.fields.values() if type(value) is int)]
    elif isinstance(event, Announced):
        counts = [value for key, value in event.facts.items() if type(value) is int and key != "seed"]
    else:
        counts = [step] if (step := getattr(event, "step", None)) is not None else []
    for count in counts:
        if (why := whole_problem(count)) is not None:
            raise LineError(f"a count {why}")
    return event


def _time_of(event: Event) -> float:
    if isinstance(event, Reading):
        return float(event.fields.get("time_unix_s", math.nan))
    return event.time_unix_s
