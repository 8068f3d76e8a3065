"""The framing of TensorBoard's event files: where each record begins and ends, and whether its checksums hold.

A record is length (uint64, little endian), masked CRC32C of it, data, masked CRC32C of the data.
Source: tensorflow/core/lib/io/record_writer.cc.

There may be a hundred million records of a hundred bytes, so they are found by pattern, a megabyte at a time: whatever
holds a small number and that number's checksum may be a header; when each begins where the one before it ends, from the
first byte on, these are the records. Else (a record holds another event file, or is large) the megabyte is walked.
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

HEADER_BYTES = 12
_FOOTER_BYTES = 4
_FRAME_BYTES = HEADER_BYTES + _FOOTER_BYTES
_HEADER = struct.Struct("<QI")
_STRETCH_BYTES = 1 << 20
_MAX_RECORD_BYTES = 1 << 26  # a longer record is not read into memory: the file is damaged. Images have a few megabytes

# The checksum of a length that is one byte alone, by its place. A CRC is linear but for a constant, which the sum of
# three has once: the checksum of a length of three bytes is that sum.
_BYTE_TABLES = [
    np.array([google_crc32c.value((byte << 8 * place).to_bytes(8, "little")) for byte in range(256)], "u4")
    for place in range(3)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a file can't be read to its end."""

    at: int  # offset of the first record that can't be read, bytes
    what: str
    torn: bool = False  # the file merely ends within a record: its writer was killed, or still writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive whole records of a file, with one entry for each in `starts` and `ends`."""

    data: bytes
    starts: NDArray[np.int64]  # offset in data of each record's header
    ends: NDArray[np.int64]  # offset in data of the first byte after each record
    at: int  # offset in the file of the first byte of data

    def bad_checksums(self) -> NDArray[np.intp]:
        """The numbers of the records whose data do not match their checksum, ascending."""
        data, value = self.data, google_crc32c.value
        spans = np.column_stack((self.starts + HEADER_BYTES, self.ends - _FOOTER_BYTES)).tolist()
        found = np.fromiter((value(data[a:b]) for a, b in spans), np.uint32, len(self.starts))
        written = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))[self.ends - _FOOTER_BYTES]
        return np.flatnonzero(_masked(found) != written)


class EventFile:
    """An event file, read from an offset at which a record begins; one stretch at a time is in memory."""

    def __init__(self, file: BinaryIO, at: int = 0) -> None:
        self._file = file
        self.at = at  # offset of the first byte that was not yielded yet
        self.problem: Problem | None = None  # what ended the reading before the file's end

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
                    break  # the record claims more than the rest of the file: no memory is taken for it
                wanted = max(wanted, lacks)
        if data:
            there = len(data) + self._left()
            self.problem = Problem(at=self.at, what=f"it ends within a record, {there} bytes of it", torn=True)

    def _left(self) -> int:
        here = self._file.tell()
        left = self._file.seek(0, os.SEEK_END) - here
        self._file.seek(here)
        return left

    def _at_a_header(self, data: bytes) -> Problem | None:
        length, checksum = _HEADER.unpack_from(data)
        if _checksum(data[:8]) != checksum:
            zeros = " (zeros: as a crash of the machine leaves it)" if not any(data[:HEADER_BYTES]) else ""
            return Problem(at=self.at, what=f"there is no record at byte {self.at}{zeros}")
        if length > _MAX_RECORD_BYTES:
            limit = f"the limit is {_MAX_RECORD_BYTES >> 20} MiB"
            return Problem(at=self.at, what=f"the record at byte {self.at} has {length} bytes: {limit}")
        return None


def _by_pattern(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
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
    checksums = np.zeros(len(lengths), np.uint32)
    for place, table in enumerate(_BYTE_TABLES):
        checksums ^= table[(lengths >> np.uint32(8 * place)) & np.uint32(0xFF)]
    are_headers = _masked(checksums) == halves[starts + 8]
    starts, lengths = starts[are_headers], lengths[are_headers].astype(np.int64)
    ends = starts + lengths + _FRAME_BYTES
    if len(ends) and ends[-1] > len(data):
        starts, ends = starts[:-1], ends[:-1]
    if not len(starts) or starts[0] != 0 or not np.array_equal(ends[:-1], starts[1:]) or ends[-1] > len(data):
        return None
    return starts, ends


def _by_walking(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts, ends, at = [], [], 0
    while at + _FRAME_BYTES <= len(data):
        length, checksum = _HEADER.unpack_from(data, at)
        end = at + length + _FRAME_BYTES
        if end > len(data) or _checksum(data[at : at + 8]) != checksum:
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
