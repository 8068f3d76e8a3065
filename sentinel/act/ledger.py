"""Writes events to the incident log, and says each to the person at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sentinel.plan.incident_events import Event
from sentinel.plan.sentences import sentence

__all__ = ["Ledger", "Say"]

Say = Callable[[str], None]
"""Shows the person at the terminal one line."""

_AROUND_ACTIONS = ("intent", "done", "failed")
"""Events that are not said: the action is described when it begins."""


class Ledger:
    """The incident log, as a watch or a command writes it."""

    def __init__(self, append: Callable[[Event], None], clock: Callable[[], float], say: Say) -> None:
        self._append = append
        self._clock = clock
        self._say = say
        self._last_line: str | None = None

    def say(self, line: str) -> None:
        """Says a line, unless it was the last one said."""
        if line != self._last_line:
            self._last_line = line
            self._say(line)

    def record(self, event: Event) -> None:
        """One event, with the time; returns when it is on the disk."""
        self._append({**event, "time_unix_s": self._clock()})
        line = None if event["event"] in _AROUND_ACTIONS else sentence(event)
        if line is not None:
            self.say(f"{event['incident']}: {line}" if event.get("incident") else line)

    def record_all(self, events: Iterable[Event]) -> None:
        """Events, in their order."""
        for event in events:
            self.record(event)
