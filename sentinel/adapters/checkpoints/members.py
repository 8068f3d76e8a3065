"""Checks the members of a file while its bytes go by, once: CRC-32, and whether floats hold nan."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sentinel.adapters.checkpoints.archive import Member, UnsoundError
from sentinel.adapters.checkpoints.shown import shown

__all__ = ["Members", "holds_nan"]

_LOCAL_HEADER_BYTES = 30

_NAN_BEYOND: dict[str, tuple[type[np.signedinteger], type[np.unsignedinteger], int, int]] = {
    "float16": (np.int16, np.uint16, 0x7C00, 0xFC00),
    "bfloat16": (np.int16, np.uint16, 0x7F80, 0xFF80),
    "float32": (np.int32, np.uint32, 0x7F80_0000, 0xFF80_0000),
    "float64": (np.int64, np.uint64, 0x7FF0_0000_0000_0000, 0xFFF0_0000_0000_0000),
}
"""The infinities' bit patterns, and the integers to read them as: what lies beyond is nan (IEEE 754)."""


def holds_nan(data: memoryview, floats: str) -> bool:
    """Whether any of the little-endian numbers is nan. Infinities are none: masks are made of them.

    Read as signed integers every positive nan is larger than +inf, and read as unsigned ones every negative nan is
    larger than -inf: two maxima, without a temporary, at memory speed, and for bfloat16 too, which numpy does not know.
    """
    signed, unsigned, beyond, beyond_negative = _NAN_BEYOND[floats]
    numbers: npt.NDArray[np.signedinteger] = np.frombuffer(data, dtype=np.dtype(signed).newbyteorder("<"))
    if not numbers.size:
        return False
    negative = numbers.view(np.dtype(unsigned).newbyteorder("<"))
    return int(numbers.max()) > beyond or int(negative.max()) > beyond_negative


class Members:
    """What is to be checked in one file; `feed` takes its bytes from the first to the last."""

    def __init__(self, descriptor: int, size: int, members: Iterator[Member], *, crcs: bool) -> None:
        self._descriptor, self._size, self._crcs = descriptor, size, crcs
        self._members = members
        self._ended_at = self._crc = 0
        self._start: int | None = None
        self._rest = b""
        self._member: Member | None = None
        self._advance()

    def feed(self, position: int, view: memoryview) -> None:
        """The next bytes, which begin at this position of the file. UnsoundError when a member is not whole."""
        end = position + len(view)
        while (member := self._member) is not None and member.position < end:
            if self._start is None:
                self._start = self._data_start(member, position, view)
            stop = self._start + member.size_bytes
            low, high = max(self._start, position), min(stop, end)
            if low < high:
                self._check(member, view[low - position : high - position])
            if stop > end:
                return
            if self._crcs and member.crc is not None and self._crc != member.crc:
                raise UnsoundError(f"{shown(member.name)} has a CRC that does not match: a bit was flipped")
            self._ended_at = stop
            self._advance()

    def _advance(self) -> None:
        self._member = next(self._members, None)
        self._start, self._crc, self._rest = None, 0, b""
        if self._member is not None and self._member.position < self._ended_at:
            raise UnsoundError(f"{shown(self._member.name)} overlaps the member before it")

    def _data_start(self, member: Member, position: int, view: memoryview) -> int:
        start = member.position
        if member.zipped:
            header = bytes(view[start - position : start - position + _LOCAL_HEADER_BYTES])
            if len(header) < _LOCAL_HEADER_BYTES:
                header = os.pread(self._descriptor, _LOCAL_HEADER_BYTES, start)
            if len(header) < _LOCAL_HEADER_BYTES or header[:4] != b"PK\x03\x04":
                raise UnsoundError(f"{shown(member.name)} is not where the archive's directory says")
            start += _LOCAL_HEADER_BYTES + int.from_bytes(header[26:28], "little")
            start += int.from_bytes(header[28:30], "little")
        if start + member.size_bytes > self._size:
            raise UnsoundError(f"{shown(member.name)} ends beyond the end of the file")
        return start

    def _check(self, member: Member, piece: memoryview) -> None:
        if self._crcs and member.crc is not None:
            self._crc = zlib.crc32(piece, self._crc)
        if member.floats is not None and self._holds_nan(piece, member.floats):
            raise UnsoundError(f"{shown(member.name)} ({member.floats}) holds nan")

    def _holds_nan(self, piece: memoryview, floats: str) -> bool:
        """The numbers that lie whole in the piece, and the one that the last piece broke off in."""
        width = np.dtype(_NAN_BEYOND[floats][0]).itemsize
        found = False
        if self._rest:
            lacks = width - len(self._rest)
            whole = self._rest + bytes(piece[:lacks])
            piece = piece[lacks:]
            found = len(whole) == width and holds_nan(memoryview(whole), floats)
            self._rest = whole if len(whole) < width else b""
        if tail := len(piece) % width:
            self._rest = bytes(piece[len(piece) - tail :])
            piece = piece[: len(piece) - tail]
        return found or holds_nan(piece, floats)
