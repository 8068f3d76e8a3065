"""The events that one line of a log reports, before the attempt that they belong to is known."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.sources.line_text import time_of, whole
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import seconds_problem, whole_problem

__all__ = ["Evaluated", "Event", "ProgramEnded", "ProgramStarted", "Reading", "Saved", "checked", "checkpoint_events"]


@dataclass(slots=True)
class Reading:
    """One step's readings, as one process wrote them."""

    step: int
    """Completed updates."""

    loss: float
    """Nats; nan also where the trainer left it out because it was not a number."""

    rank: str | None = None
    """The process that wrote it; None where the line does not name one."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of Sample by their names, except attempt, global_step, loss and loss_spread."""

    total_steps: int | None = None
    """The M of `N/M`."""

    @property
    def time_unix_s(self) -> float:
        """When the line was written; nan where it has no time."""
        return float(self.fields.get("time_unix_s", math.nan))


@dataclass(slots=True)
class ProgramStarted:
    """A start of the program."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of RunStarted by their names. `resumed_from` is there where the log names it, None for "from scratch"."""

    certain: bool = False
    """True: the program has started again. False: a checkpoint was loaded, which may have other reasons."""

    time_unix_s: float = math.nan
    interval: int | None = None
    """Steps between two lines of readings, where the settings name it."""


@dataclass(slots=True)
class Evaluated:
    """A validation loss; step None is "after the last step"."""

    loss: float
    step: int | None = None
    time_unix_s: float = math.nan


@dataclass(slots=True)
class Saved:
    """A complete checkpoint."""

    step: int
    tag: str
    time_unix_s: float = math.nan


@dataclass(slots=True)
class ProgramEnded:
    """The program reports that it has done all its steps."""

    reason: str = "finished"
    time_unix_s: float = math.nan


Event = Reading | ProgramStarted | Evaluated | Saved | ProgramEnded


def checked(event: Event) -> Event:
    """The event. LineError where one of its counts or its time is impossible."""
    if (why := seconds_problem(event.time_unix_s)) is not None:
        raise LineError(f"the time {why}")
    if isinstance(event, Reading):
        counts = [event.step, *(value for value in event.fields.values() if type(value) is int)]
    elif isinstance(event, ProgramStarted):
        counts = [value for key, value in event.facts.items() if type(value) is int and key != "seed"]
    else:
        counts = [step] if (step := getattr(event, "step", None)) is not None else []
    for count in counts:
        if (why := whole_problem(count)) is not None:
            raise LineError(f"a count {why}")
    return event


_STEP = r"(?:global[_ ]?step|step|iteration|iter|updates?|ba)\s*[:=_@-]?\s*(\d{1,15})"
_LOADED = re.compile(rf"\b(?:load|restor|resum)(?:ed|ing|es|e)\b[^|]{{0,400}}?{_STEP}", re.IGNORECASE)
_SAVED = re.compile(rf"\b(?:saved|finished saving|wrote)\b[^|]{{0,400}}?{_STEP}", re.IGNORECASE)
_UPDATES = re.compile(r"(?:loaded|saved) checkpoint .{0,400}?@ (\d{1,15}) updates", re.IGNORECASE)
_LONGEST_SENTENCE = 2_000


def checkpoint_events(line: str) -> Sequence[Event] | None:
    """The checkpoint that was loaded or saved, in a trainer's own words; None where the line is about neither."""
    if ("heckpoint" not in line and "esum" not in line) or len(line) > _LONGEST_SENTENCE:
        return None
    if (found := _UPDATES.search(line) or _SAVED.search(line)) is not None and "aved" in line:
        step = whole(found[1])
        return None if step is None else (Saved(step=step, tag=f"global_step{step}", time_unix_s=time_of(line)),)
    if (found := _UPDATES.search(line) or _LOADED.search(line)) is not None:
        step = whole(found[1])
        start = ProgramStarted(facts={"resumed_from": step or None}, time_unix_s=time_of(line))
        return None if step is None else (start,)
    return None
