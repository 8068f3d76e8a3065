"""Reads one program's lines: each format has a Decoder, which knows what a line says, and nothing of what came before
but what its own records need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sentinel.sources.assembler import Assembler
from sentinel.sources.events import Event, Reading, checked
from sentinel.sources.prefixes import uncoloured
from sentinel.sources.wrapped import unwrapped
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.sample import Record

__all__ = ["Decoder", "LineReader", "UnreadableLine"]

_MOST_KEPT = 20
"""Unreadable lines that are kept to be shown; the others are counted."""

_LONGEST = 1 << 16
"""Characters; no trainer says so much of one step, and patterns are tried at every place of a line."""

_SHOWN = 200
"""Characters of such a line that are kept."""


class Decoder(Protocol):
    """One format."""

    name: ClassVar[str]
    """As it is said to the user."""

    one_writer: ClassVar[bool]
    """Whether one process writes the lines: the same step twice, with another loss, is then a restart."""

    note: str
    """What has to be known of the numbers; a sentence, or empty."""

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells; None for a line of somebody else's. LineError: it is one of ours, and can't be read."""
        ...

    def end(self) -> Sequence[Event]:
        """What was buffered of a record over several lines."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLine:
    """A line that looks like readings and is none."""

    number: int
    """Counted from 1."""

    text: str
    why: str


class LineReader:
    """Turns lines into records, and counts what it can't."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._assembler = Assembler(one_writer=decoder.one_writer)
        self.lines = 0
        self.readings = 0
        """Lines, or blocks of lines, that held a step's readings."""
        self.foreign = 0
        """Lines of other programs: warnings, progress bars. They are no errors."""
        self.unreadable = 0
        self.first_unreadable: list[UnreadableLine] = []

    @property
    def name(self) -> str:
        """The format's name."""
        return self._decoder.name

    @property
    def note(self) -> str:
        """What has to be known of this log's numbers; a sentence, or empty."""
        return self._decoder.note

    def feed(self, line: str, number: int | None = None) -> list[Record]:
        """The records that are complete with this line. Never raises; `number` is the line's own, counted from 1."""
        self.lines += 1
        if len(line) > _LONGEST:
            self.foreign += 1
            return []
        if "\x1b" in line:
            line = uncoloured(line)
        if line.startswith("{") and (inner := unwrapped(line)) is not None:
            self.lines -= 1
            return [record for part in inner for record in self.feed(part, number)]
        try:
            events = self._decoder.decode(line)
            for event in events or ():
                checked(event)
        except LineError as error:
            self.cannot_read(line, str(error), number)
            return []
        if events is None:
            self.foreign += 1
            return []
        return self._taken(events)

    def cannot_read(self, line: str, why: str, number: int | None = None) -> None:
        """Counts a line that can't be read."""
        self.unreadable += 1
        if len(self.first_unreadable) < _MOST_KEPT:
            shown = UnreadableLine(number=number or self.lines, text=line[:_SHOWN], why=why)
            self.first_unreadable.append(shown)

    def end(self) -> list[Record]:
        """What is still held: nothing more is expected for now. Feeding may go on after it."""
        return [*self._taken(self._decoder.end()), *self._assembler.settle()]

    def _taken(self, events: Sequence[Event]) -> list[Record]:
        if len(events) == 1:
            event = events[0]
            if type(event) is Reading:
                self.readings += 1
            return self._assembler.take(event)
        records: list[Record] = []
        for event in events:
            self.readings += isinstance(event, Reading)
            records += self._assembler.take(event)
        return records
