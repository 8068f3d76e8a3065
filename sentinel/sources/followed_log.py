"""Follows a trainer's log, or one for each rank, while it is appended, rotated, cut or replaced; also on NFS."""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sentinel.sources.file_bytes import LineSplitter
from sentinel.sources.line_decoders import LineFormat
from sentinel.sources.line_formats import format_named
from sentinel.sources.line_reader import NO_COLUMNS, LineReader
from sentinel.sources.log_file import Trial, format_of, one_by_one
from sentinel.sources.rank_merge import RankMerge
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record

log = logging.getLogger(__name__)

# Lines that are kept while no format is recognised; then the oldest are let go.
_MOST_UNDECIDED, _MOST_UNDECIDED_CHARACTERS = 100_000, 1 << 24
_CHUNK_BYTES = 1 << 18
_MARK_BYTES = 256  # the beginning of the file, by which a file that was cut and has grown past where we were is known

Lines = list[tuple[int, str]]


class FollowedLog:
    """What was appended since the last poll.

    `path` may be a pattern (`logs/rank-*.txt`): one file for each rank, of which a step is one sample. A step is given
    when the next has begun, or when a poll finds nothing new. Begun anew, it gives the same records in the same order.

    Samples without a time of day get that of the reading; those of the first poll, which were written before, keep nan.
    `columns` (field to name) say what the steps and losses are where that can be read in two ways.
    """

    def __init__(
        self,
        path: Path,
        *,
        format_name: str | None = None,
        columns: Mapping[str, str] = NO_COLUMNS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._columns = columns
        self._now = now
        self._format = format_of(format_name, columns) if format_name else None
        self._refusal = ""
        self._files: dict[str, _RankLog] = {}
        self._ranks = RankMerge()
        self._live = False

    @property
    def _readers(self) -> list[LineReader]:
        return [one.reader for one in self._files.values() if one.reader is not None]

    @property
    def format(self) -> str | None:
        """The format's name; None while it is not recognised."""
        return next((reader.name for reader in self._readers), None)

    @property
    def unreadable(self) -> int:
        """Lines that look like readings and could not be read, so far; they are passed over."""
        return sum(reader.unreadable for reader in self._readers)

    def poll(self) -> list[Record]:
        """What is new. A file that is not there yet is nothing yet; OSError when what is there can't be read.
        ConfigError from the time when its lines can be read in two ways."""
        return list(self.new())

    def new(self) -> Iterator[Record]:
        """The same, one record at a time: a log may be larger than memory."""
        if self._refusal:
            raise ConfigError(self._refusal)
        several = glob.has_magic(str(self._path)) and not self._path.exists()
        for path in sorted(glob.glob(str(self._path))) if several else [str(self._path)]:  # noqa: PTH207
            if path not in self._files:
                known = format_named(self.format) if self.format else self._format
                self._files[path] = _RankLog(Path(path), known, self._columns)
        now = self._now() if self._live else None
        try:
            for record in self._merged(several):
                if now is not None and math.isnan(record.time_unix_s):
                    record = replace(record, time_unix_s=now)  # noqa: PLW2901 - the same record
                yield record
        except ConfigError as error:
            self._refusal = f"{error}; of a watch: [source] loss = NAME or step = WORD, then start it again"
            log.warning("%s", self._refusal)
            raise ConfigError(self._refusal) from None
        self._live = True

    def _merged(self, several: bool) -> Iterator[Record]:
        for path, one in self._files.items():
            yield from self._ranks.take(path, list(one.new())) if several else one.new()
        if several:
            yield from self._ranks.complete(quiet=all(one.quiet for one in self._files.values()))


class _RankLog:
    """One of the files, with its format. `quiet`: the last poll found nothing new."""

    def __init__(self, path: Path, known: LineFormat | None, columns: Mapping[str, str]) -> None:
        self._file = FollowedFile(path)
        self._columns = columns
        self.reader = None if known is None else LineReader(known, columns)
        self.quiet = True
        self._trial = Trial(columns)
        self._undecided: deque[tuple[int, str]] = deque()
        self._characters = 0

    def new(self) -> Iterator[Record]:
        """The new records; where no line is new, also the step that was still open."""
        self.quiet = True
        for lines in self._file.poll():
            self.quiet = False
            yield from self._read(lines)
            self._refuse("" if self.reader is None else self.reader.refusal)
        if self.quiet and self.reader is None:
            yield from self._decide()
        if self.quiet and self.reader is not None:
            yield from self.reader.end()

    def _read(self, lines: Lines) -> Iterator[Record]:
        for at, (number, line) in enumerate(lines):
            if self.reader is not None:
                yield from one_by_one(self.reader.feed_all(lines[at:]))
                return
            yield from self._tried(number, line)

    def _tried(self, number: int, line: str) -> list[Record]:
        self._undecided.append((number, line))
        self._characters += len(line)
        self._trial.feed(line)
        if self._trial.decided:
            return self._decide()
        while len(self._undecided) > _MOST_UNDECIDED or self._characters > _MOST_UNDECIDED_CHARACTERS:
            self._characters -= len(self._undecided.popleft()[1])
        return []

    def _decide(self) -> list[Record]:
        """The format is known: what was read so far is read by it. It is not tried again."""
        best = self._trial.best
        self._refuse(self._trial.refusal)
        if best is None or not self._trial.has_read:
            return []
        self.reader = LineReader(format_named(best.name), self._columns, best.decoder)
        log.info("%s: a log of the format %s", self._file.path, best.name)
        lines, self._undecided = list(self._undecided), deque()
        return list(one_by_one(self.reader.feed_all(lines)))

    def _refuse(self, problem: str) -> None:
        """ConfigError where the lines can be read in two ways."""
        if problem:
            raise ConfigError(f"{self._file.path}: {problem}")


class FollowedFile:
    """Gives the lines that were completed since the last poll, of whatever file is at the path. A file that was renamed
    is read to its end through its open descriptor, then the one that took its name. One that became shorter, or begins
    differently, is read from its beginning. A file that is gone is nothing for now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._offset = 0
        self._mark = b""
        self._was_shorter = False
        self.splitter = LineSplitter()

    def poll(self) -> Iterator[Lines]:
        """The lines that are complete now, a chunk at a time. OSError when what is there can't be read."""
        try:
            if self._fd is not None and not self._is_at_path(self._fd):
                yield from self._appended(self._fd)
                yield self.splitter.end()
                self._close()
                self._offset, self._mark = 0, b""
            if self._fd is None:
                try:
                    self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                except FileNotFoundError:
                    return
            yield from self._appended(self._fd)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._close()  # the server has replaced the file, or forgotten our handle: the next poll asks by name

    def _is_at_path(self, fd: int) -> bool:
        """Whether the open file is still the one at the path, or none is there."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path))  # noqa: PTH116 - beside fstat
        except FileNotFoundError:
            return True

    def _appended(self, fd: int) -> Iterator[Lines]:
        mark = os.pread(fd, _MARK_BYTES, 0)
        begun_anew = not mark.startswith(self._mark)
        shorter = os.fstat(fd).st_size < self._offset
        if shorter and not begun_anew and not self._was_shorter:
            self._was_shorter = True  # NFS may show an older size for a while: the next poll decides
            return
        self._was_shorter = False
        if begun_anew or shorter:
            self._offset = 0
            self.splitter.forget()
        self._mark = mark
        while chunk := os.pread(fd, _CHUNK_BYTES, self._offset):
            self._offset += len(chunk)
            yield self.splitter.feed(chunk)

    def _close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = None

    def __del__(self) -> None:
        self._close()
