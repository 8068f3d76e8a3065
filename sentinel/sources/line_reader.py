"""Reads the lines of one log in one format: from lines to records, and a count of those that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.sources.line_decoders import LineFormat
from sentinel.sources.line_events import Event, Reading, checked
from sentinel.sources.line_text import uncoloured, unwrapped
from sentinel.sources.rank_merge import AttemptMerge
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.sample import Record

__all__ = ["LineReader", "UnreadableLine"]

_MOST_KEPT = 20
"""Unreadable lines that are kept to be shown; the others are counted."""

_LONGEST = 1 << 16
"""Characters; no trainer writes so much about one step, and patterns are tried at every place of a line."""

_SHOWN = 200
"""Characters of an unreadable line that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLine:
    """A line of the format that is damaged."""

    number: int
    """Counted from 1."""

    text: str
    why: str


class LineReader:
    """Turns lines into records."""

    def __init__(self, line_format: LineFormat) -> None:
        self.name = line_format.name
        self._decoder = line_format.decoder()
        self._merge = AttemptMerge(one_writer=line_format.one_writer)
        self.lines = 0
        self.readings = 0
        """Lines, or blocks of lines, that held a step's readings."""
        self.foreign = 0
        """Lines of other programs: warnings, progress bars. They are not errors."""
        self.unreadable = 0
        self.first_unreadable: list[UnreadableLine] = []

    @property
    def note(self) -> str:
        """What a person has to know of this log's numbers; a sentence, or empty."""
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
            self.unreadable += 1
            if len(self.first_unreadable) < _MOST_KEPT:
                shown = UnreadableLine(number=number or self.lines, text=line[:_SHOWN], why=str(error))
                self.first_unreadable.append(shown)
            return []
        if events is None:
            self.foreign += 1
            return []
        return self._merged(events)

    def end(self) -> list[Record]:
        """What is buffered: nothing more is expected for now. Feeding may go on after it."""
        return [*self._merged(self._decoder.end()), *self._merge.complete()]

    def _merged(self, events: Sequence[Event]) -> list[Record]:
        records: list[Record] = []
        for event in events:
            self.readings += type(event) is Reading
            records += self._merge.take(event)
        return records
