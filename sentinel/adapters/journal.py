"""The metrics journals: written by the trainer, only ever read here."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import msgspec

from sentinel.bounded import LINE_BYTES, open_regular
from sentinel.durable import os_errors_named
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import LARGEST_WHOLE, LATEST_UNIX_S
from sentinel.vocabulary.sample import CheckpointSaved, Parked, Record, RunFinished, RunStarted, Sample, decode

log = logging.getLogger(__name__)

_NAME = re.compile(r"\d{4,}\.jsonl")
_CHUNK_BYTES = 1 << 20
_END_BYTES = 1 << 18
_MARKED_SAMPLES = 4096  # Samples from one step that is marked with its place in the journal to the next: 3 MB

_Number = float | Literal["nan", "inf", "-inf"]
_Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_WHOLE)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=LATEST_UNIX_S)] | Literal["nan"]


def _sample_line() -> type[Any]:
    """A sample's line, in exactly the shape that `encode` gives it: field for field a Sample."""
    kinds: dict[str, Any] = {"int": _Count, "float": _Number, "bool": bool}
    columns: list[Any] = [("kind", Literal["sample"])]
    for each in fields(Sample):
        kind, _, optional = str(each.type).partition(" | ")
        read = _Seconds if each.name == "time_unix_s" else kinds[kind]
        default = () if each.default is MISSING else (each.default,)
        columns.append((each.name, read | None if optional else read, *default))
    return msgspec.defstruct("_SampleLine", columns, forbid_unknown_fields=True, gc=False)


# A sample's line by the names of Sample's fields; many times faster than `decode`, and stricter.
decode_sample = msgspec.json.Decoder(_sample_line()).decode
# Raised by `decode_sample` for a line that is for `decode` itself.
NO_SAMPLE_LINE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)


def parked_at_end(state_dir: Path) -> Parked | None:
    """The `parked` that the newest attempt's journal ends with, whole; None where its last record is another one, or is
    torn. Read from the disk: nothing that was read before counts. OSError."""
    journals = journals_in(state_dir / "attempts")
    if not journals:
        return None
    with open_regular(journals[-1]) as file:
        file.seek(max(0, file.seek(0, 2) - _END_BYTES))
        tail = file.read(_END_BYTES)
    lines = tail.split(b"\n")
    if len(lines) < 2 or lines[-1]:  # what follows the last line's end was begun after it
        return None
    try:
        record = decode_line(lines[-2])
    except LineError:
        return None
    is_of_journal = isinstance(record, Parked) and record.attempt == int(journals[-1].stem)
    return record if isinstance(record, Parked) and is_of_journal else None


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


@dataclass(slots=True)
class JournalPlace:
    """How far a journal was read, and what that has shown of it."""

    offset: int = 0  # Bytes
    within: bool = False  # Whether that is within a line that is too long to be kept
    attempts: set[int] = field(default_factory=set)  # Those that it has records of: one
    samples: int = 0
    last_step: int = -1
    rising: bool = True  # Whether each sample's step was above the one's before
    # (step of a sample, where the next line begins) of every 4096th: what is after a step is found without the rest.
    marks: list[tuple[int, int]] = field(default_factory=list)

    def note(self, record: Record) -> None:
        """A record, with the offset after its line."""
        self.attempts.add(record.attempt)
        if isinstance(record, Sample):
            self.samples += 1
            self.rising = self.rising and record.global_step > self.last_step
            self.last_step = record.global_step
            if self.samples % _MARKED_SAMPLES == 0:
                self.marks.append((record.global_step, self.offset))

    def offset_of(self, step: int) -> int:
        """From where on all samples after the step are found; samples before it too."""
        if not self.rising or len(self.attempts) != 1:
            return 0
        return next((offset for marked, offset in reversed(self.marks) if marked <= step), 0)


class Journals:
    """Follows all attempts/NNNN.jsonl of a run's state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "attempts"
        self.places: dict[str, JournalPlace] = {}  # By the journal's name
        self.unreadable = 0  # lines so far that could not be read; they are passed over

    def poll(self) -> list[Record]:
        """What was appended since the last poll: by attempt, then in order. An unfinished last line waits for its end.
        A folder that is not there yet is nothing yet; OSError when what is there can't be read."""
        return list(self.new())

    def new(self) -> Iterator[Record]:
        """The same, one record at a time: a journal may be larger than memory. What was given counts as read."""
        for path in journals_in(self.folder):
            yield from self._appended(path.name)

    def again(self, attempt: int, after: int = -1) -> Iterator[Sample]:
        """The attempt's samples of steps above `after` that were read before, in order, and nothing newer. A journal
        that was taken away since has none. FilesystemUnavailable or FilesystemRefused when it can't be read."""
        for name, place in [(name, place) for name, place in self.places.items() if attempt in place.attempts]:
            path, begin = self.folder / name, place.offset_of(after)
            left = place.offset - begin
            with os_errors_named(path):
                try:
                    file = open_regular(path)
                except FileNotFoundError:
                    log.warning("%s was removed: its readings are lost", path)
                    continue
                with file:
                    file.seek(begin)
                    for size, line, _ in _lines(file):
                        left -= size
                        if left < 0:
                            break
                        record = self._decoded(name, line, anew=False)
                        if isinstance(record, Sample) and record.attempt == attempt and record.global_step > after:
                            yield record

    def _appended(self, name: str) -> Iterator[Record]:
        with open_regular(self.folder / name) as file:
            place = self.places.setdefault(name, JournalPlace())
            if os.fstat(file.fileno()).st_size < place.offset:  # no journal is ever cut: this one was begun again
                place = self.places[name] = JournalPlace(attempts=place.attempts)
            file.seek(place.offset)
            for size, line, ended in _lines(file, within=place.within):
                place.offset += size
                place.within = not ended
                if (record := self._decoded(name, line)) is not None:
                    place.note(record)
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
    try:
        return msgspec.convert(decode_sample(line), Sample, from_attributes=True)
    except NO_SAMPLE_LINE:
        return decode(line.decode("utf-8", "replace"))
