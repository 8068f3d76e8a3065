"""The scalars of an event file: tag, step, time and value.

A Value's field 2 is a scalar as PyTorch's and TensorFlow 1's writers give it, field 8 a tensor, as TensorFlow 2's do:
dtype in its field 1, the bytes in field 4, or floats in field 5 and doubles in field 6.
Source: tensorflow/core/framework/summary.proto, tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.adapters.event_files.events import VALUE_KEY, fields_of, short_scalars, values_of, walked
from sentinel.adapters.event_files.frames import HEADER_BYTES, EventFile, Problem, Stretch

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_TYPES = {1: "f", 2: "d", 3: "i", 9: "q"}  # TensorFlow's number of a scalar's type: struct's letter
_PACKED = {"f": 5, "d": 6}  # the field that holds numbers of the type where no bytes are given


class Scalars(NamedTuple):
    """Scalars in the order of the file, one entry for each."""

    tags: NDArray[np.int64]  # numbers into ScalarFile.tags
    steps: NDArray[np.int64]
    times_unix_s: NDArray[np.float64]
    values: NDArray[np.float64]


class ScalarFile:
    """Reads the scalars of an event file, a stretch at a time; collects the records that it can't read."""

    def __init__(self, file: BinaryIO, tags: dict[str, int]) -> None:
        self._file = EventFile(file)
        self.tags = tags  # every tag met so far, and its number; several files may share it
        self._numbers: dict[bytes, int] = {tag.encode(): number for tag, number in tags.items()}
        self.records = 0  # read so far
        self.bad: list[tuple[int, str]] = []  # unreadable records: number from 1, and why; the caller empties it

    @property
    def problem(self) -> Problem | None:
        return self._file.problem

    def stretches(self) -> Iterator[Scalars]:
        """All scalars of the file, to its end or to the first frame that is not whole."""
        for stretch in self._file.stretches():
            yield self._scalars(*self._whole(stretch))
            self.records += len(stretch.starts)

    def _whole(self, stretch: Stretch) -> tuple[Stretch, NDArray[np.int64]]:
        """The stretch without the records whose checksums do not hold, and the numbers of those that are left."""
        numbers, bad = self.records + np.arange(1, len(stretch.starts) + 1), stretch.bad_checksums()
        if not len(bad):
            return stretch, numbers
        self.bad += [(number, "its checksum does not hold") for number in numbers[bad].tolist()]
        starts, ends, left = (np.delete(column, bad) for column in (stretch.starts, stretch.ends, numbers))
        return replace(stretch, starts=starts, ends=ends), left

    def _scalars(self, stretch: Stretch, numbers: NDArray[np.int64]) -> Scalars:
        short = short_scalars(stretch)
        value_at = short.tags_at + short.tag_bytes
        last = len(short.words) - 1
        heads = short.words[np.minimum(value_at, last)]
        plain = short.are & ((heads & np.uint64(0xFF)) == VALUE_KEY)
        plain &= value_at + 5 == stretch.ends - 4
        places = np.flatnonzero(plain)
        bits = ((heads[places] >> np.uint64(8)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        data, number = stretch.data, self._number
        spans = np.column_stack((short.tags_at[places], value_at[places])).tolist()
        found = Scalars(
            tags=np.fromiter((number(data[a:b]) for a, b in spans), np.int64, len(places)),
            steps=short.steps[places],
            times_unix_s=short.words[stretch.starts[places] + HEADER_BYTES + 1].view(np.float64),
            values=bits.view(np.float32).astype(np.float64),
        )
        if plain.all():
            return found
        rows = self._walked(stretch, numbers, np.flatnonzero(~plain))
        others, *walked_ones = zip(*rows, strict=True) if rows else ((),) * 5
        order = np.argsort(np.concatenate([places, np.array(others, np.int64)]), kind="stable")
        columns = zip(found, walked_ones, strict=True)
        return Scalars(*(np.concatenate([plain, np.array(rest, plain.dtype)])[order] for plain, rest in columns))

    def _walked(
        self, stretch: Stretch, numbers: NDArray[np.int64], places: NDArray[np.int64]
    ) -> list[tuple[int, int, int, float, float]]:
        """Place, tag, step, time and value of each scalar in these records."""
        rows = []
        for place in places.tolist():
            try:
                event = walked(stretch, place)
                (time,) = _DOUBLE.unpack(event.time)
                scalars = [scalar for value in values_of(event) if (scalar := _scalar(value)) is not None]
            except (IndexError, ValueError, struct.error):
                self.bad.append((int(numbers[place]), "it holds no event"))
                continue
            rows += [(place, self._number(tag), event.step, time, value) for tag, value in scalars]
        return rows

    def _number(self, tag: bytes) -> int:
        number = self._numbers.get(tag)
        if number is None:
            number = self._numbers[tag] = self.tags.setdefault(tag.decode("utf-8", "replace"), len(self.tags))
        return number


def is_event_file(file: BinaryIO) -> bool:
    """Whether the file begins with a whole record."""
    return next(EventFile(file).stretches(), None) is not None


def _scalar(value: bytes) -> tuple[bytes, float] | None:
    tag, scalar = b"", None
    for number, field in fields_of(value):
        if not isinstance(field, bytes):
            continue
        if number == 1:
            tag = field
        elif number == 2:
            (scalar,) = _FLOAT.unpack(field)
        elif number == 8:
            scalar = _tensor(field)
    return None if scalar is None else (tag, scalar)


def _tensor(tensor: bytes) -> float | None:
    """The one number that it holds; None for text, several numbers, and types that no loss has."""
    kind, fields = None, dict[int, bytes]()
    for number, field in fields_of(tensor):
        if number == 1 and isinstance(field, int):
            kind = _TYPES.get(field)
        elif isinstance(field, bytes):
            fields[number] = field
    if kind is None:
        return None
    data = fields.get(4) or fields.get(_PACKED.get(kind, -1), b"")
    return float(struct.unpack(f"<{kind}", data)[0]) if len(data) == struct.calcsize(f"<{kind}") else None
