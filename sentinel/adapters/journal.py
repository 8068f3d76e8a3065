"""The metrics journals: written by the trainer, only ever read here."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from sentinel.bounded import LINE_BYTES, open_regular
from sentinel.durable import os_errors_named
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import LARGEST_WHOLE, UNIX_SECONDS
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunFinished, RunStarted, Sample, decode

log = logging.getLogger(__name__)

_NAME = re.compile(r"\d{4,}\.jsonl")
_CHUNK_BYTES = 1 << 20
_END_BYTES = 1 << 18

# A sample's line as `encode` writes it: nothing nested or escaped, and no number that Python thinks too long.
_PLAIN_SAMPLE = re.compile(rb'\{"kind": "sample", "[^{}\[\]\\\x00-\x1f\x7f-\xff]{1,4000}\}')
_decode_sample = msgspec.json.Decoder(Sample).decode
_counts_of = attrgetter(*(f.name for f in fields(Sample) if str(f.type).removesuffix(" | None") == "int"))


class Beginning(NamedTuple):
    """The newest attempt, by the ends of its journal: quick, however long that is."""

    started: RunStarted
    finished: bool  # it has reported its end
    saved: bool  # these ends show that the run has saved a checkpoint; False where they do not tell


def last_beginning(state_dir: Path) -> Beginning | None:
    """None where no attempt has reported its start. OSError when what is there can't be read."""
    for path in reversed(journals_in(state_dir / "attempts")):
        with open_regular(path) as file:
            first = file.read(_END_BYTES)
            file.seek(max(0, path.stat().st_size - _END_BYTES))
            last = file.read(_END_BYTES)
        head, tail = list(_records(first)), list(_records(last))
        started = next((r for r in head if isinstance(r, RunStarted)), None)
        if started is not None:
            finished = any(isinstance(r, RunFinished) for r in tail)
            saved = bool(started.resumed_from) or any(isinstance(r, CheckpointSaved) for r in (*head, *tail))
            steps = max((r.global_step for r in (*head, *tail) if isinstance(r, Sample)), default=0)
            interval = started.checkpoint_interval_steps  # or by steps past the first checkpoint that was due
            return Beginning(started, finished, saved or (interval is not None and steps > interval))
    return None


def journals_in(folder: Path) -> list[Path]:
    """The attempts' journals in the folder, by attempt; none where it is not there yet. OSError."""
    found = [p for p in folder.iterdir() if _NAME.fullmatch(p.name)] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.stem))


def _records(data: bytes) -> Iterator[Record]:
    for line in data.splitlines():
        with contextlib.suppress(LineError):
            if (record := decode_line(line)) is not None:
                yield record


class Journals:
    """Follows all attempts/NNNN.jsonl of a run's state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "attempts"
        self._offsets: dict[str, int] = {}
        self._attempts: dict[str, set[int]] = {}
        self._within: set[str] = set()  # journals that were read up to within a line that is too long to be kept
        self.unreadable = 0  # lines so far that could not be read; they are passed over

    def poll(self) -> list[Record]:
        """What was appended since the last poll: by attempt, then in order. An unfinished last line waits for its end.
        A folder that is not there yet is nothing yet; OSError when what is there can't be read."""
        return list(self.new())

    def new(self) -> Iterator[Record]:
        """The same, one record at a time: a journal may be larger than memory. What was given counts as read."""
        for path in journals_in(self._folder):
            yield from self._appended(path.name)

    def again(self, attempt: int) -> Iterator[Sample]:
        """The attempt's samples that were read before, from the first one, in order, and nothing newer. A journal that
        was taken away since has none. FilesystemUnavailable or FilesystemRefused when it can't be read."""
        for name in [name for name, attempts in self._attempts.items() if attempt in attempts]:
            path, left = self._folder / name, self._offsets[name]
            with os_errors_named(path):
                try:
                    file = open_regular(path)
                except FileNotFoundError:
                    log.warning("%s was removed: its readings are lost", path)
                    continue
                with file:
                    for size, line, _ in _lines(file):
                        left -= size
                        if left < 0:
                            break
                        record = self._decoded(name, line, anew=False)
                        if isinstance(record, Sample) and record.attempt == attempt:
                            yield record

    def _appended(self, name: str) -> Iterator[Record]:
        with open_regular(self._folder / name) as file:
            if os.fstat(file.fileno()).st_size < self._offsets.setdefault(name, 0):
                self._offsets[name] = 0  # no journal is ever cut: this one was taken away, and begun again
                self._within.discard(name)
            file.seek(self._offsets[name])
            attempts = self._attempts.setdefault(name, set())
            for size, line, ended in _lines(file, within=name in self._within):
                self._offsets[name] += size
                (self._within.discard if ended else self._within.add)(name)
                if (record := self._decoded(name, line)) is not None:
                    attempts.add(record.attempt)
                    yield record

    def _decoded(self, name: str, line: bytes, *, anew: bool = True) -> Record | None:
        if not line.strip():
            return None
        try:
            if len(line) > LINE_BYTES:
                raise LineError(f"it has more than {LINE_BYTES >> 20} MiB")
            return decode_line(line)
        except LineError as error:
            if anew:
                self.unreadable += 1
                log.warning("%s: a line that can't be read: %s", name, error)
            return None


def _lines(file: BinaryIO, *, within: bool = False) -> Iterator[tuple[int, bytes, bool]]:
    """From where the file stands: bytes of each line in the file, the line without its end, and whether it has ended.
    An unfinished last line waits, unless it is too long to be kept: its first part is given as it is, the rest as an
    empty line. `within`: the file stands within such a line."""
    rest = b""
    while chunk := file.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield len(line) + 1, b"" if within else line, True
            within = False
        if within or len(rest) > LINE_BYTES:
            yield len(rest), b"" if within else rest, False
            within, rest = True, b""


def decode_line(line: bytes) -> Record | None:
    """What `decode` says of the line; many times faster for a sample in which all is a number."""
    if line.count(b'"kind"') == 1 and _PLAIN_SAMPLE.fullmatch(line):
        with contextlib.suppress(msgspec.MsgspecError):  # "nan", or not right: decode knows
            sample = _decode_sample(line)
            counts = (count is None or 0 <= count <= LARGEST_WHOLE for count in _counts_of(sample))
            if sample.time_unix_s in UNIX_SECONDS and all(counts):
                return sample
    return decode(line.decode("utf-8", "replace"))
