"""Reads a whole log, of any size: its format is recognised, its records come one after another."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sentinel.bounded import unpacked
from sentinel.sources.line_reader import Decoder, LineReader, UnreadableLine
from sentinel.sources.line_splitter import LineSplitter
from sentinel.sources.recognise import Trial, decoder_named, unknown
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record

__all__ = ["LogRead", "read_log"]

_CHUNK_BYTES = 1 << 18
_HEAD_LINES = 2_000
"""Lines by which a format is recognised; more where they hold no readings at all."""

_MOST_HEAD_LINES, _MOST_HEAD_CHARACTERS = 200_000, 1 << 26
"""No more than these are looked at: each format is tried on each line."""


def read_log(path: Path, format_name: str | None = None) -> LogRead:
    """The log, ready to be read. ConfigError where it can't be opened, or nothing in it is recognised."""
    decoder = decoder_named(format_name) if format_name else _recognised(path)
    return LogRead(path, decoder)


class LogRead:
    """A log's records, in their order; iterating reads the file anew, in constant memory.

    The counts are those of the reading that is under way, or was the last.
    """

    def __init__(self, path: Path, decoder: type[Decoder]) -> None:
        self.path = path
        self._decoder = decoder
        self._reader = LineReader(decoder())
        self._splitter = LineSplitter()

    @property
    def format(self) -> str:
        """The format's name."""
        return self._decoder.name

    @property
    def note(self) -> str:
        """What has to be known of the numbers; a sentence, or empty."""
        return self._reader.note

    @property
    def lines(self) -> int:
        """Lines that were read."""
        return self._reader.lines

    @property
    def foreign(self) -> int:
        """Lines of other programs; they are no errors."""
        return self._reader.foreign

    @property
    def unreadable(self) -> int:
        """Lines that look like readings and can't be read."""
        return self._reader.unreadable

    @property
    def first_unreadable(self) -> list[UnreadableLine]:
        """The first few of them."""
        return self._reader.first_unreadable

    @property
    def cut_lines(self) -> int:
        """Lines that were longer than a mebibyte: what goes beyond was dropped."""
        return self._splitter.cut

    def __iter__(self) -> Iterator[Record]:
        self._reader, self._splitter = LineReader(self._decoder()), LineSplitter()
        reader = self._reader
        for number, line in _lines(self.path, self._splitter):
            records = reader.feed(line, number)
            if records:
                yield from records
        yield from reader.end()


def _recognised(path: Path) -> type[Decoder]:
    trial, characters = Trial(), 0
    for count, (_, line) in enumerate(_lines(path, LineSplitter()), start=1):
        trial.feed(line)
        characters += len(line)
        if count >= _HEAD_LINES and trial.decided:
            break
        if count >= _MOST_HEAD_LINES or characters >= _MOST_HEAD_CHARACTERS:
            break
    best = trial.best
    if best is None:
        raise unknown(path)
    return best


def _lines(path: Path, splitter: LineSplitter) -> Iterator[tuple[int, str]]:
    with _opened(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield from splitter.feed(chunk)
        yield from splitter.end()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with unpacked(path) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"a gzip file that is not whole ({error})"
        raise ConfigError(f"{path}: {why}") from error
