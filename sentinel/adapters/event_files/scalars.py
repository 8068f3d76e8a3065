"""The scalars of an event file: tag, step, time and value.

A Value's field 2 is a scalar as PyTorch's and TensorFlow 1's writers give it, field 8 a tensor, as TensorFlow 2's do:
dtype in its field 1, the bytes in field 4, or floats in field 5 and doubles in field 6.
Source: tensorflow/core/framework/summary.proto, tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sentinel.adapters.event_files.events import VALUE_KEY, fields_of, short_scalars
from sentinel.adapters.event_files.frames import HEADER_BYTES, EventFile, Problem, Stretch

__all__ = ["ScalarFile", "Scalars", "is_event_file"]

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_TYPES = {1: "f", 2: "d", 3: "i", 9: "q"}
"""TensorFlow's number of a type that one scalar may be of, as struct knows it."""
_PACKED = {"f": 5, "d": 6}
"""The field that holds numbers of the type where no bytes are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """Scalars in the order of the file, one entry for each."""

    tags: NDArray[np.int64]
    """Numbers into ScalarFile.tags."""

    steps: NDArray[np.int64]
    times_unix_s: NDArray[np.float64]
    values: NDArray[np.float64]


class ScalarFile:
    """Reads the scalars of an event file, a stretch at a time. What it can't read it counts."""

    def __init__(self, file: BinaryIO, tags: dict[str, int]) -> None:
        self._file = EventFile(file)
        self.tags = tags
        """Every tag met so far, and its number; of several files, where they are given the same."""
        self._numbers: dict[bytes, int] = {tag.encode(): number for tag, number in tags.items()}
        self.records = 0
        """Records read so far."""
        self.bad: list[tuple[int, str]] = []
        """Records that can't be read, by their number from 1, and why; emptied by whoever reads it."""

    @property
    def problem(self) -> Problem | None:
        """What ended the reading before the file's end."""
        return self._file.problem

    def stretches(self) -> Iterator[Scalars]:
        """All scalars of the file, to its end or to the first frame that is not whole."""
        for stretch in self._file.stretches():
            yield self._scalars(*self._whole(stretch))
            self.records += len(stretch.starts)

    def _whole(self, stretch: Stretch) -> tuple[Stretch, NDArray[np.int64]]:
        """The stretch without the records whose checksums do not hold, and the numbers of those that are left."""
        numbers = self.records + np.arange(1, len(stretch.starts) + 1)
        damaged = []
        rest, passed = stretch, 0
        while (bad := rest.first_bad_checksum()) is not None:
            damaged.append(passed + bad)
            self.bad.append((int(numbers[passed + bad]), "its checksum does not hold"))
            passed += bad + 1
            rest = Stretch(data=stretch.data, starts=stretch.starts[passed:], ends=stretch.ends[passed:], at=stretch.at)
        if not damaged:
            return stretch, numbers
        starts, ends = np.delete(stretch.starts, damaged), np.delete(stretch.ends, damaged)
        return Stretch(data=stretch.data, starts=starts, ends=ends, at=stretch.at), np.delete(numbers, damaged)

    def _scalars(self, stretch: Stretch, numbers: NDArray[np.int64]) -> Scalars:
        if not len(stretch.starts):
            return _none()
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
        others = np.flatnonzero(~plain)
        return self._with_walked(stretch, numbers, places, found, others) if len(others) else found

    def _with_walked(
        self,
        stretch: Stretch,
        numbers: NDArray[np.int64],
        places: NDArray[np.int64],
        found: Scalars,
        others: NDArray[np.int64],
    ) -> Scalars:
        """Those that were found at once and those of the other records, in the order of the file."""
        at, tags, steps, times, values = [], [], [], [], []
        for place in others.tolist():
            data = stretch.data[int(stretch.starts[place]) + HEADER_BYTES : int(stretch.ends[place]) - 4]
            try:
                time, step, scalars = _walked(data)
            except (IndexError, ValueError, struct.error):
                self.bad.append((int(numbers[place]), "it holds no event"))
                continue
            for tag, value in scalars:
                at.append(place)
                tags.append(self._number(tag))
                steps.append(step)
                times.append(time)
                values.append(value)
        order = np.argsort(np.concatenate([places, np.array(at, np.int64)]), kind="stable")
        return Scalars(
            tags=np.concatenate([found.tags, np.array(tags, np.int64)])[order],
            steps=np.concatenate([found.steps, np.array(steps, np.int64)])[order],
            times_unix_s=np.concatenate([found.times_unix_s, np.array(times, np.float64)])[order],
            values=np.concatenate([found.values, np.array(values, np.float64)])[order],
        )

    def _number(self, tag: bytes) -> int:
        number = self._numbers.get(tag)
        if number is None:
            number = self._numbers[tag] = self.tags.setdefault(tag.decode("utf-8", "replace"), len(self.tags))
        return number


def is_event_file(file: BinaryIO) -> bool:
    """Whether the file begins with a whole record."""
    return next(EventFile(file).stretches(), None) is not None


def _none() -> Scalars:
    whole, floats = np.zeros(0, np.int64), np.zeros(0, np.float64)
    return Scalars(tags=whole, steps=whole, times_unix_s=floats, values=floats)


def _walked(data: bytes) -> tuple[float, int, list[tuple[bytes, float]]]:
    """Time, step and scalars of any event. IndexError, ValueError, struct.error when it is none."""
    time, step, scalars = 0.0, 0, []
    for number, value in fields_of(data):
        if number == 1 and isinstance(value, bytes):
            (time,) = _DOUBLE.unpack(value)
        elif number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif number == 5 and isinstance(value, bytes):
            for inner, one in fields_of(value):
                if inner == 1 and isinstance(one, bytes) and (scalar := _scalar(one)) is not None:
                    scalars.append(scalar)
    return time, step, scalars


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
    """The one number that it holds; None for text, for several, for types that no loss is of."""
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
