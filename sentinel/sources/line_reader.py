"""Turns the lines of a log into records: by itself each, or many that are alike at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from sentinel.sources.alike_lines import AlikeLines, AlikeSamples, LineShape
from sentinel.sources.column_source import Tally
from sentinel.sources.line_decoders import LineFormat
from sentinel.sources.line_events import Decoder, Evaluated, Event, LineReading, checked
from sentinel.sources.line_shape import shape_of
from sentinel.sources.line_text import ANSI, unwrapped
from sentinel.sources.rank_merge import AttemptMerge
from sentinel.sources.taken_names import TakenNames
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.sample import Record

LONGEST = 1 << 16  # characters; no trainer writes so much about a step, and patterns are tried at every place
NO_COLUMNS: Mapping[str, str] = MappingProxyType({})
_SHOWN = 200  # characters of an unreadable line that are kept
_MANY = 4  # lines that are taken together at least
_MOST_SHAPES = 16  # that are learned of one log: learning takes as long as reading a hundred lines
_MOST_REFUSED = 32  # times in a row; lines of several ranks, for one, are never taken together


class LineReader:
    """Turns lines into records. `readings` counts the lines, or blocks of lines, with a step's readings; `foreign` the
    lines of other programs, such as warnings and progress bars, which are not errors. `columns` (field to name) are
    looked for where the format has names; `learned` is a decoder that has seen the head of the log."""

    def __init__(
        self, line_format: LineFormat, columns: Mapping[str, str] = NO_COLUMNS, learned: Decoder | None = None
    ) -> None:
        self.name = line_format.name
        self.decoder = line_format.decoder()
        self.decoder.ask(columns)
        if learned is not None:
            self.decoder.learn(learned)
        self._merge = AttemptMerge(one_writer=line_format.one_writer)
        self.tally = Tally()  # of the lines that are damaged
        self.lines = self.readings = self.evaluations = self.foreign = 0
        self._format, self._columns = line_format, columns
        self._shape: LineShape | None = None  # of the newest lines
        self._shapes_left = _MOST_SHAPES
        self._refused = 0  # times in a row that lines of one shape could not be taken together
        self.taken: TakenNames | None = None  # finds out which words became which field, where that is wanted

    @property
    def unreadable(self) -> int:
        """Lines of the format that are damaged, so far."""
        return self.tally.unreadable

    @property
    def refusal(self) -> str:
        """Why the lines that were read are not to be judged; a sentence, or empty."""
        kinds = self.decoder.kinds
        return kinds.problem or kinds.displaced or self.decoder.jobs.problem or self._merge.problem

    @property
    def note(self) -> str:
        """What a person has to know of this log's numbers; sentences, or empty."""
        notes = list(self.decoder.notes)
        if averaged := self._merge.averaged:
            taken = "taken for other ranks', a step is the mean of them"
            notes.append(f"{averaged} lines have the step before them and another loss: {taken}")
        return "; ".join(notes)

    @property
    def counts(self) -> dict[str, int]:
        return {
            "steps": self.readings,
            "evaluations": self.evaluations,
            "repeated": self._merge.repeated,
            "left_out": sum(self.decoder.kinds.left_out.values()),
            "unreadable": self.unreadable,
            "other": self.foreign,
        }

    def feed(self, line: str, number: int | None = None) -> list[Record]:
        """The records that are complete with this line. Never raises; `number` is the line's own, counted from 1."""
        self.lines += 1
        if len(line) > LONGEST:
            self.foreign += 1
            return []
        if "\x1b" in line:
            line = ANSI.sub("", line)
        if line.startswith("{") and (inner := unwrapped(line)) is not None:
            self.lines -= 1
            return [record for part in inner for record in self.feed(part, number)]
        try:
            events = self.decoder.decode(line)
            for event in events or ():
                checked(event)
        except LineError as error:
            self.tally.cannot_read(number or self.lines, f"{error}: {line[:_SHOWN]}")
            return []
        if self.taken is not None:
            self.taken.push(line, events or ())
        if events is None:
            self.foreign += 1
            return []
        return self._merged(events)

    def feed_all(self, lines: Sequence[tuple[int, str]]) -> Iterator[Record | AlikeSamples]:
        """The same for neighbouring lines with their numbers; many samples at once where nothing but steps is new."""
        if self.taken is not None and self.taken.looks:  # one by one
            for number, line in lines:
                yield from self.feed(line, number)
            return
        alike: list[tuple[int, str]] = []
        texts: list[tuple[str, ...]] = []
        match = None if self._shape is None else self._shape.pattern.fullmatch
        for number, raw in lines:
            line = ANSI.sub("", raw) if "\x1b" in raw else raw
            if match is not None and (found := match(line)) is not None:
                alike.append((number, line))
                texts.append(found.groups())
            elif not (line.startswith("{") or self.decoder.may_read(line)):
                self.lines += 1
                self.foreign += 1
            else:
                yield from self._alike(alike, texts)
                alike, texts = [], []
                yield from self._learned_from(line, number)
                match = None if self._shape is None else self._shape.pattern.fullmatch
        yield from self._alike(alike, texts)

    def _alike(
        self, lines: Sequence[tuple[int, str]], texts: Sequence[tuple[str, ...]]
    ) -> Iterator[Record | AlikeSamples]:
        """Lines of one shape. The first and the last are read by themselves: what was open before and stays open."""
        rest, records = lines, None
        if len(lines) >= _MANY and self._shape is not None:
            yield from self.feed(lines[0][1], lines[0][0])
            records = self._together(AlikeLines(self._shape, [line for _, line in lines[1:]], texts[1:]))
            yield from records or ()
            rest = lines[1:] if records is None else lines[-1:]
        for number, line in rest:
            yield from self.feed(line, number)
        if lines:
            self._refused = self._refused + 1 if records is None else 0
            if self._refused >= _MOST_REFUSED:
                self._shape, self._shapes_left = None, 0

    def _together(self, lines: AlikeLines) -> list[Record | AlikeSamples] | None:
        """The samples of all but the last line; None, with none read, where they have to be read one by one."""
        steps, before_last = self.decoder.steps_of(lines), lines.but_last()
        records = None if steps is None else self._merge.take_all(before_last, steps)
        if steps is None or records is None:
            return None
        self.decoder.pass_over(before_last, steps[:-1])
        self.lines += len(before_last)
        self.readings += len(before_last)
        return records

    def _learned_from(self, line: str, number: int) -> list[Record]:
        """Reads a line by itself; where it is a step, the next ones may be of its shape."""
        readings = self.readings
        records = self.feed(line, number)
        if self._shapes_left and self.readings == readings + 1 and self.decoder.is_plain(line):
            self._shapes_left -= 1
            self._shape = shape_of(line, self._read_alone) or self._shape
        return records

    def _read_alone(self, line: str) -> LineReading | None:
        decoder = self._format.decoder()
        decoder.ask(self._columns)
        try:
            (event,) = decoder.decode(line) or (None,)
        except (LineError, ValueError):  # more than one event
            return None
        return event if isinstance(event, LineReading) else None

    def end(self) -> list[Record]:
        """What is buffered: nothing more is expected for now. Feeding may go on after it."""
        return [*self._merged(self.decoder.end()), *self._merge.complete()]

    def _merged(self, events: Sequence[Event]) -> list[Record]:
        records: list[Record] = []
        for event in events:
            if type(event) is LineReading:
                self.readings += 1
            elif type(event) is Evaluated:
                self.evaluations += 1
            records += self._merge.take(event)
        return records
