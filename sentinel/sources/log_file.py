"""A log of lines, of any size: its format is recognised, and its lines become records one after another."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from sentinel.bounded import unpacked
from sentinel.sources.column_names import of_rl, signs_of_rl
from sentinel.sources.column_source import Tally
from sentinel.sources.file_bytes import LineSplitter
from sentinel.sources.line_decoders import LineFormat
from sentinel.sources.line_events import Decoder, Evaluated, Event, Reading, checked
from sentinel.sources.line_formats import FORMATS, format_named
from sentinel.sources.line_text import ANSI, unwrapped
from sentinel.sources.rank_merge import AttemptMerge
from sentinel.sources.taken_names import TakenNames
from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.sample import Record

_CHUNK_BYTES = 1 << 18
_HEAD_LINES = 2_000  # by which a format is recognised; more where they have no readings at all
_MOST_HEAD_LINES, _MOST_HEAD_CHARACTERS = 200_000, 1 << 26  # of the head: each format is tried on each of its lines
_ENOUGH, _ENOUGH_GENERIC = 2, 10  # readings after which a format is certain; `generic` waits for one of its own
_STRAY = 20  # where `generic` reads so many times more lines than any other format, those were another program's
_LONGEST = 1 << 16  # characters; no trainer writes so much about a step, and patterns are tried at every place
_FEW_OF_RL = 2  # lines with words of reinforcement learning that any log may have
NO_COLUMNS: Mapping[str, str] = MappingProxyType({})
_SHOWN = 200  # characters of an unreadable line that are kept


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
        if len(line) > _LONGEST:
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

    def end(self) -> list[Record]:
        """What is buffered: nothing more is expected for now. Feeding may go on after it."""
        return [*self._merged(self.decoder.end()), *self._merge.complete()]

    def _merged(self, events: Sequence[Event]) -> list[Record]:
        records: list[Record] = []
        for event in events:
            if type(event) is Reading:
                self.readings += 1
            elif type(event) is Evaluated:
                self.evaluations += 1
            records += self._merge.take(event)
        return records


class Trial:
    """All formats, tried side by side: the one that reads most of the lines is the log's."""

    def __init__(self, columns: Mapping[str, str] = NO_COLUMNS) -> None:
        readers = [LineReader(each, columns) for each in FORMATS]
        self._readers = [each for each in readers if each.decoder.takes_columns or not columns]
        self._asks_for_loss = "loss" in columns
        self._of_rl = self._of_rl_anywhere = 0  # lines of steps, and all lines, with numbers of reinforcement learning
        self._begun = False  # whether a step was read
        self._signs: frozenset[str] = frozenset()

    def feed(self, line: str) -> None:
        if len(line) <= _LONGEST and not self._asks_for_loss and (signs := signs_of_rl(line)):
            self._begun = self._begun or self.has_read
            self._of_rl_anywhere += 1
            self._of_rl += self._begun or "loss" in line.lower()  # else the settings of a framework may name them
            self._signs |= signs
        for reader in self._readers:
            reader.feed(line)

    @property
    def refusal(self) -> str:
        """Why the best format's readings are not to be judged; a sentence, or empty."""
        best = self.best
        few = _FEW_OF_RL if best is None else min(_FEW_OF_RL, best.readings // 2)
        if (self._of_rl_anywhere if best is None else self._of_rl) > few:
            return of_rl(self._signs)
        return "" if best is None else best.decoder.kinds.problem

    @property
    def best(self) -> LineReader | None:
        """The reader of the format that has read most so far; None while none has read any."""
        for reader in self._readers:
            reader.end()  # an open block counts
        *specific, generic = self._readers
        best = max(specific, key=lambda each: each.readings)
        if generic.readings > _STRAY * best.readings:
            best = generic
        elif not best.readings:
            best = max(specific, key=lambda each: each.unreadable)  # every line of it is cut
            if not best.unreadable:
                return None
        return best

    @property
    def has_read(self) -> bool:
        return any(reader.readings for reader in self._readers)

    @property
    def decided(self) -> bool:
        *specific, generic = self._readers
        return generic.readings >= _ENOUGH_GENERIC or any(reader.readings >= _ENOUGH for reader in specific)


def format_of(name: str, columns: Mapping[str, str]) -> LineFormat:
    """The format of that name. ConfigError where there is none, or `columns` are given and its names are fixed."""
    found = format_named(name)
    if columns and not found.decoder().takes_columns:
        raise ConfigError(f"the names of the format {name} are fixed: leave out {' and '.join(columns)}")
    return found


def read_log(path: Path, format_name: str | None = None, columns: Mapping[str, str] = NO_COLUMNS) -> LogFile:
    """The log, ready to be read. ConfigError where it cannot be opened, or nothing in it is recognised."""
    if format_name:
        return LogFile(path, format_of(format_name, columns), columns)
    best = _recognised(path, columns)
    return LogFile(path, format_named(best.name), columns, best.decoder)


class LogFile:
    """A log's records, in their order; iterating reads the file again, in constant memory. `reader` and `splitter` have
    the counts of the current, or last, iteration. ConfigError while iterating, where two kinds of lines may be the
    training steps."""

    def __init__(
        self,
        path: Path,
        line_format: LineFormat,
        columns: Mapping[str, str] = NO_COLUMNS,
        learned: Decoder | None = None,
    ) -> None:
        self.path = path
        self.explains = False
        self.format = line_format.name
        self._new_reader = partial(LineReader, line_format, columns, learned)
        self.reader, self.splitter = self._new_reader(), LineSplitter()

    def __iter__(self) -> Iterator[Record]:
        self.reader, self.splitter = reader, splitter = self._new_reader(), LineSplitter()
        reader.taken = TakenNames() if self.explains else None
        for number, line in _lines(self.path, splitter):
            records = reader.feed(line, number)
            if records:
                yield from records
        yield from reader.end()
        if reader.refusal:
            raise ConfigError(f"{self.path}: {reader.refusal}")


def _recognised(path: Path, columns: Mapping[str, str]) -> LineReader:
    trial, characters = Trial(columns), 0
    for count, (_, line) in enumerate(_lines(path, LineSplitter()), start=1):
        trial.feed(line)
        characters += len(line)
        enough = count >= _MOST_HEAD_LINES or characters >= _MOST_HEAD_CHARACTERS
        if enough or (count >= _HEAD_LINES and trial.decided):
            break
    best = trial.best
    if best is None and columns:
        named = " and ".join(f"{ours}={theirs}" for ours, theirs in columns.items())
        raise ConfigError(f"{path}: no line has a step and a loss by the names of --column {named}")
    if refusal := trial.refusal:
        raise ConfigError(f"{path}: {refusal}")
    if best is None:
        names = ", ".join(each.name for each in FORMATS)
        raise ConfigError(
            f"{path}: no line of it is a training step in any format that is known ({names}): a line, or the lines "
            "below a header, should have the step and the training loss, as in `step 10 loss 3.2`; the first 200,000 "
            "lines (64 MiB of them) are looked at"
        )
    return best


def _lines(path: Path, splitter: LineSplitter) -> Iterator[tuple[int, str]]:
    try:
        with unpacked(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield from splitter.feed(chunk)
            yield from splitter.end()
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"a gzip file that is not whole ({error})"
        raise ConfigError(f"{path}: {why}") from error
