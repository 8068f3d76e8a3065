"""The framing of TensorBoard's event files: where each record begins and ends, and whether its checksums hold.

A record is length (uint64, little endian), masked CRC32C of it, data, masked CRC32C of the data.
Source: tensorflow/core/lib/io/record_writer.cc.

Records are as a rule a hundred bytes long and there are a hundred million of them, so that they are found by pattern,
a megabyte at a time: whatever holds a small number and that number's checksum may be a header; when each of these
begins just where the one before it ends, from the first byte on, they are the records and nothing else is. Where that
does not hold (a record that holds another event file, or a very large one) the megabyte is walked record by record.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

__all__ = ["HEADER_BYTES", "EventFile", "Problem", "Stretch"]

HEADER_BYTES = 12
_FOOTER_BYTES = 4
_FRAME_BYTES = HEADER_BYTES + _FOOTER_BYTES
_HEADER = struct.Struct("<QI")
_STRETCH_BYTES = 1 << 20
_MAX_RECORD_BYTES = 1 << 26
"""A longer record is not taken into memory: the file counts as one that can't be read. Images have a few megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a file can't be read to its end."""

    at: int
    """Offset of the first record that can't be read, bytes."""

    what: str
    torn: bool = False
    """Whether the file merely ends within a record, as a writer leaves it that was killed, or is still at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive whole records of a file, with one entry for each in `starts` and `ends`."""

    data: bytes
    starts: NDArray[np.int64]
    """Offset in data of each record's header."""

    ends: NDArray[np.int64]
    """Offset in data of the first byte after each record."""

    at: int
    """Offset in the file of the first byte of data."""

    def first_bad_checksum(self) -> int | None:
        """The number of the first record whose data are not what was written; None when all are."""
        data, value = self.data, google_crc32c.value
        spans = np.column_stack((self.starts + HEADER_BYTES, self.ends - _FOOTER_BYTES)).tolist()
        found = np.fromiter((value(data[a:b]) for a, b in spans), np.uint32, len(self.starts))
        said = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))[self.ends - _FOOTER_BYTES]
        bad = np.flatnonzero(_masked(found) != said)
        return int(bad[0]) if len(bad) else None


class EventFile:
    """An event file, read from an offset at which a record begins; in memory is one stretch at a time."""

    def __init__(self, file: BinaryIO, at: int = 0) -> None:
        self._file = file
        self.at = at
        """Offset of the first byte that has not been given out."""
        self.problem: Problem | None = None
        """What ended the reading before the file's end; None when nothing did."""

    def stretches(self) -> Iterator[Stretch]:
        """The records, to the end of the file or to the first that can't be read."""
        self._file.seek(self.at)
        data, wanted = b"", _STRETCH_BYTES
        while more := self._file.read(wanted):
            data += more
            starts, ends = (_by_pattern(data) if len(data) <= 2 * _STRETCH_BYTES else None) or _by_walking(data)
            whole = int(ends[-1]) if len(ends) else 0
            if whole:
                yield Stretch(data=data, starts=starts, ends=ends, at=self.at)
                self.at += whole
                data = data[whole:]
            wanted = _STRETCH_BYTES
            if len(data) >= HEADER_BYTES:
                if (problem := self._at_a_header(data)) is not None:
                    self.problem = problem
                    return
                lacks = _HEADER.unpack_from(data)[0] + _FRAME_BYTES - len(data)
                if lacks > self._left():
                    break  # the record claims more than there is of the file: memory for it is not asked for
                wanted = max(wanted, lacks)
        if data:
            there = len(data) + self._left()
            self.problem = Problem(at=self.at, what=f"it ends within a record, {there} bytes of it", torn=True)

    def _left(self) -> int:
        """Bytes of the file after those that were read."""
        here = self._file.tell()
        left = self._file.seek(0, os.SEEK_END) - here
        self._file.seek(here)
        return left

    def _at_a_header(self, data: bytes) -> Problem | None:
        length, said = _HEADER.unpack_from(data)
        if _checksum(data[:8]) != said:
            zeros = " (zeros: as a crash of the machine leaves it)" if not any(data[:HEADER_BYTES]) else ""
            return Problem(at=self.at, what=f"there is no record at byte {self.at}{zeros}")
        if length > _MAX_RECORD_BYTES:
            return Problem(
                at=self.at,
                what=f"the record at byte {self.at} has {length} bytes: the limit is {_MAX_RECORD_BYTES >> 20} MiB",
            )
        return None


Bounds = tuple[NDArray[np.int64], NDArray[np.int64]]


def _by_pattern(data: bytes) -> Bounds | None:
    """Starts and ends of the whole records at the beginning of data; None where the pattern alone does not tell."""
    if len(data) < HEADER_BYTES:
        return None
    is_zero = np.zeros(len(data), np.bool_)
    for shift in range(4):  # the length's upper half, which may stand at any byte
        words = np.frombuffer(data, "<u4", (len(data) - shift) // 4, shift)
        is_zero[shift : shift + 4 * len(words) : 4] = words == 0
    starts = np.flatnonzero(is_zero[4 : len(data) - 7])
    halves = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))  # one that begins at each byte
    lengths = halves[starts]
    are_headers = _checksums_of_lengths(lengths) == halves[starts + 8]
    starts, lengths = starts[are_headers], lengths[are_headers].astype(np.int64)
    ends = starts + lengths + _FRAME_BYTES
    if len(ends) and ends[-1] > len(data):
        starts, ends = starts[:-1], ends[:-1]
    if not len(starts) or starts[0] != 0 or not np.array_equal(ends[:-1], starts[1:]) or ends[-1] > len(data):
        return None
    return starts, ends


def _by_walking(data: bytes) -> Bounds:
    starts, ends, at = [], [], 0
    while at + _FRAME_BYTES <= len(data):
        length, said = _HEADER.unpack_from(data, at)
        end = at + length + _FRAME_BYTES
        if end > len(data) or _checksum(data[at : at + 8]) != said:
            break
        starts.append(at)
        ends.append(end)
        at = end
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _masked(checksums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return ((checksums >> np.uint32(15)) | (checksums << np.uint32(17))) + np.uint32(0xA282EAD8)


def _checksum(data: bytes) -> int:
    value: int = google_crc32c.value(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


_BYTE_TABLES = [
    np.array([google_crc32c.value((byte << 8 * place).to_bytes(8, "little")) for byte in range(256)], "u4")
    for place in range(3)
]
"""The checksum of a length that is one byte alone, by its place. A CRC is linear but for a constant, which the sum of
three has once: the checksum of a length of three bytes is that sum."""


def _checksums_of_lengths(lengths: NDArray[np.uint32]) -> NDArray[np.uint32]:
    checksums = np.zeros(len(lengths), np.uint32)
    for place, table in enumerate(_BYTE_TABLES):
        checksums ^= table[(lengths >> np.uint32(8 * place)) & np.uint32(0xFF)]
    return _masked(checksums)
