"""Follows a trainer's log, or one per rank, while it is written: the same contract as the metrics journals'."""

from __future__ import annotations

import glob
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from sentinel.sources.followed_file import FollowedFile
from sentinel.sources.line_reader import Decoder, LineReader, UnreadableLine
from sentinel.sources.ranks import Ranks
from sentinel.sources.recognise import Trial, decoder_named
from sentinel.vocabulary.sample import Record

__all__ = ["FollowedLog"]

log = logging.getLogger(__name__)

_MOST_UNDECIDED = 100_000
"""Lines that are kept while no format is recognised; then the oldest are let go."""

_MOST_UNDECIDED_CHARACTERS = 1 << 24


class FollowedLog:
    """What was appended since the last poll.

    `path` may be a pattern (`logs/rank-*.txt`): one file for each rank, of which a step is one sample. A step is given
    when the next has begun, or when a poll finds nothing new. Begun anew, it gives the same records in the same order.

    Samples without a time of day get that of the reading; those of the first poll, which were written before, keep nan.
    """

    def __init__(self, path: Path, *, format_name: str | None = None, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._decoder = decoder_named(format_name) if format_name else None
        self._files: dict[str, _One] = {}
        self._ranks = Ranks()
        self._live = False

    @property
    def format(self) -> str | None:
        """The format's name; None while it is not recognised."""
        return next((one.reader.name for one in self._files.values() if one.reader is not None), None)

    @property
    def unreadable(self) -> int:
        """Lines that look like readings and could not be read, so far; they are passed over."""
        return sum(one.reader.unreadable for one in self._files.values() if one.reader is not None)

    @property
    def first_unreadable(self) -> list[UnreadableLine]:
        """The first few of them."""
        return [line for one in self._files.values() if one.reader is not None for line in one.reader.first_unreadable]

    def poll(self) -> list[Record]:
        """What is new. A file that is not there yet is nothing yet; OSError when what is there can't be read."""
        return list(self.new())

    def new(self) -> Iterator[Record]:
        """The same, one record at a time: a log may be larger than memory."""
        several = glob.has_magic(str(self._path)) and not self._path.exists()
        for path in sorted(glob.glob(str(self._path))) if several else [str(self._path)]:  # noqa: PTH207
            if path not in self._files:
                decoder = decoder_named(self.format) if self.format else self._decoder
                self._files[path] = _One(Path(path), decoder)
        now = self._now() if self._live else None
        for record in self._merged() if several else chain.from_iterable(one.new() for one in self._files.values()):
            if now is not None and math.isnan(record.time_unix_s):
                record = replace(record, time_unix_s=now)  # noqa: PLW2901 - the same record
            yield record
        self._live = True

    def _merged(self) -> Iterator[Record]:
        quiet = True
        for path, one in self._files.items():
            yield from self._ranks.take(path, list(one.new()))
            quiet = quiet and one.quiet
        yield from self._ranks.complete(quiet=quiet)


class _One:
    """One of the files, with its format."""

    def __init__(self, path: Path, decoder: type[Decoder] | None) -> None:
        self._file = FollowedFile(path)
        self.reader: LineReader | None = None if decoder is None else LineReader(decoder())
        self.quiet = True
        """Whether the last poll found nothing new."""
        self._trial = Trial()
        self._undecided: deque[tuple[int, str]] = deque()
        self._characters = 0

    def new(self) -> Iterator[Record]:
        """The new records; where no line is new, the step that was held as well."""
        self.quiet = True
        for lines in self._file.poll():
            self.quiet = False
            for number, line in lines:
                yield from self._fed(number, line)
        if self.quiet:
            yield from self._settled()

    def _fed(self, number: int, line: str) -> list[Record]:
        if self.reader is not None:
            return self.reader.feed(line, number)
        self._undecided.append((number, line))
        self._characters += len(line)
        self._trial.feed(line)
        if self._trial.decided:
            return self._decide()
        while len(self._undecided) > _MOST_UNDECIDED or self._characters > _MOST_UNDECIDED_CHARACTERS:
            self._characters -= len(self._undecided.popleft()[1])
        return []

    def _settled(self) -> list[Record]:
        if self.reader is not None:
            return self.reader.end()
        return self._decide() if self._trial.has_read else []

    def _decide(self) -> list[Record]:
        """The format is known: what was read so far is read by it. It is not tried again."""
        decoder = self._trial.best
        if decoder is None:
            return []
        self.reader = LineReader(decoder())
        log.info("%s: a log of the format %s", self._file.path, decoder.name)
        lines, self._undecided = self._undecided, deque()
        return [record for number, line in lines for record in self.reader.feed(line, number)]
