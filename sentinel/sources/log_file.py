"""A log of lines, of any size: its format is recognised, and its lines become records one after another."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from sentinel.bounded import unpacked
from sentinel.sources.alike_lines import AlikeSamples
from sentinel.sources.column_names import of_rl, signs_of_rl
from sentinel.sources.file_bytes import LineSplitter
from sentinel.sources.line_decoders import LineFormat
from sentinel.sources.line_events import Decoder
from sentinel.sources.line_formats import FORMATS, format_named
from sentinel.sources.line_reader import LONGEST, NO_COLUMNS, LineReader
from sentinel.sources.taken_names import TakenNames
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record

_CHUNK_BYTES = 1 << 18
_HEAD_LINES = 2_000  # by which a format is recognised; more where they have no readings at all
_MOST_HEAD_LINES, _MOST_HEAD_CHARACTERS = 200_000, 1 << 26  # of the head: each format is tried on each of its lines
_ENOUGH, _ENOUGH_GENERIC = 2, 10  # readings after which a format is certain; `generic` waits for one of its own
_STRAY = 20  # where `generic` reads so many times more lines than any other format, those were another program's
_FEW_OF_RL = 2  # lines with words of reinforcement learning that any log may have


class Trial:
    """All formats, tried side by side: the one that reads most of the lines is the log's."""

    def __init__(self, columns: Mapping[str, str] = NO_COLUMNS) -> None:
        readers = [LineReader(each, columns) for each in FORMATS]
        self._readers = [each for each in readers if each.decoder.takes_columns or not columns]
        self._of_word: dict[str, list[LineReader]] = {}
        for reader in self._readers:
            for word in reader.decoder.words:
                self._of_word.setdefault(word, []).append(reader)
        self.decided = False  # whether the format is certain
        self._asks_for_loss = "loss" in columns
        self._of_rl = self._of_rl_anywhere = 0  # lines of steps, and all lines, with numbers of reinforcement learning
        self._begun = False  # whether a step was read
        self._signs: frozenset[str] = frozenset()

    def feed(self, line: str) -> None:
        if len(line) <= LONGEST and not self._asks_for_loss and (files_seen := signs_of_rl(line)):
            self._begun = self._begun or self.has_read
            self._of_rl_anywhere += 1
            self._of_rl += self._begun or "loss" in line.lower()  # else the settings of a framework may name them
            self._signs |= files_seen
        if "\x1b" in line or line.startswith("{"):
            concerned = set(self._readers)
        else:
            concerned = {reader for word, readers in self._of_word.items() if word in line for reader in readers}
            concerned.update(reader for reader in self._readers if reader.decoder.within)
        for reader in concerned:
            reader.feed(line)
        if concerned and not self.decided:
            *specific, generic = self._readers
            enough = any(reader.readings >= _ENOUGH for reader in specific)
            self.decided = enough or generic.readings >= _ENOUGH_GENERIC

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
        return one_by_one(self.in_stretches())

    def in_stretches(self) -> Iterator[Record | AlikeSamples]:
        """The records, with many samples as one where nothing but steps is new."""
        self.reader, self.splitter = reader, splitter = self._new_reader(), LineSplitter()
        reader.taken = TakenNames() if self.explains else None
        for lines in _chunks(self.path, splitter):
            yield from reader.feed_all(lines)
        yield from reader.end()
        if reader.refusal:
            raise ConfigError(f"{self.path}: {reader.refusal}")


def _recognised(path: Path, columns: Mapping[str, str]) -> LineReader:
    trial, characters = Trial(columns), 0
    lines = (line for lines in _chunks(path, LineSplitter()) for _, line in lines)
    for count, line in enumerate(lines, start=1):
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


def one_by_one(records: Iterable[Record | AlikeSamples]) -> Iterator[Record]:
    for record in records:
        if isinstance(record, AlikeSamples):
            yield from record.samples()
        else:
            yield record


def _chunks(path: Path, splitter: LineSplitter) -> Iterator[list[tuple[int, str]]]:
    try:
        with unpacked(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield splitter.feed(chunk)
            yield splitter.end()
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"a gzip file that is not whole ({error})"
        raise ConfigError(f"{path}: {why}") from error
