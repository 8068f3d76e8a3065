"""The members of a checkpoint's file, found without unpickling (torch's zip archives, safetensors, DCP's pieces) and
checked while the file's bytes are read, once: CRC-32, and whether floats hold nan."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentinel.adapters.checkpoints.pickled import LARGEST_BYTES, Global, Persistent, PickleError, read_pickle
from sentinel.vocabulary.names import shown
from sentinel.vocabulary.numbers import json_too_large

# What torch.save began a file with before torch 1.6.
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_LARGEST_DIRECTORY = 16 << 20  # of a zip archive: that of 200,000 storages; each of its entries becomes an object
_LARGEST_HEADER = 100_000_000  # the limit of the safetensors library itself
_LOCAL_HEADER_BYTES = 30
_BLOCK_BYTES = 1 << 16
_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "float32",
    "ComplexDoubleStorage": "float64",
}
_SAFETENSORS = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "C64": "float32"}

# The infinities' bit patterns, and the integers to read them as: what lies beyond is nan (IEEE 754).
_NAN_BEYOND: dict[str, tuple[type[np.signedinteger], type[np.unsignedinteger], int, int]] = {
    "float16": (np.int16, np.uint16, 0x7C00, 0xFC00),
    "bfloat16": (np.int16, np.uint16, 0x7F80, 0xFF80),
    "float32": (np.int32, np.uint32, 0x7F80_0000, 0xFF80_0000),
    "float64": (np.int64, np.uint64, 0x7FF0_0000_0000_0000, 0xFFF0_0000_0000_0000),
}


class UnsoundError(Exception):
    """What is wrong with a file, as a sentence that begins after the file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipMember:
    """A run of bytes in a file that can be checked by itself."""

    name: str
    position: int  # where it begins in the file: its local header in a zip archive, its first byte in safetensors
    size_bytes: int
    crc: int | None  # CRC-32 of its bytes; None where the format has none
    zipped: bool  # a local header of its own length stands before its bytes
    floats: str | None  # float32, float64, float16 or bfloat16 where it holds such numbers and nothing else


class _Window(io.RawIOBase):
    """A part of an open file as a file of its own; a read beyond what any checkpoint needs is refused."""

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        super().__init__()
        self._descriptor, self._start, self._size, self._at = descriptor, start, size, 0
        self._block_at, self._block = 0, b""
        self.most = _LARGEST_DIRECTORY  # bytes per read

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence] + offset
        if at < 0:
            raise OSError(f"a seek to {at}")
        self._at = at
        return at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        size = left if size < 0 else min(size, left)
        if size > self.most:
            raise zipfile.BadZipFile(f"its directory claims {size} bytes, and the limit is {self.most >> 20} MiB")
        begin = self._at - self._block_at
        if begin < 0 or begin + size > len(self._block):  # what is near, the directory or a member, is read with it
            self._block_at = max(0, min(self._at, self._size - _BLOCK_BYTES))
            begin = self._at - self._block_at
            length = min(max(_BLOCK_BYTES, begin + size), self._size - self._block_at)
            self._block = os.pread(self._descriptor, length, self._start + self._block_at)
        data = self._block[begin : begin + size]
        self._at += len(data)
        return data


def torch_members(descriptor: int, start: int, size: int, *, digested: bool = False) -> Iterator[ZipMember]:
    """The members of what torch.save wrote into this part of a file, by position. UnsoundError.

    digested: whether the whole file is compared with a digest: only then one of before torch 1.6 can be verified.
    """
    if os.pread(descriptor, len(_LEGACY), start) == _LEGACY:
        if digested:
            return
        raise UnsoundError("it has torch's format from before 1.6, which has no checksums: it can't be verified")
    with _zip(descriptor, start, size) as archive:
        infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
        storages = _storages(archive)
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 0x1:
            raise UnsoundError(f"{shown(info.filename)} is compressed or encrypted, which torch.save does not do")
        if info.compress_size != info.file_size:
            raise UnsoundError(f"{shown(info.filename)} has two sizes, {info.compress_size} and {info.file_size} bytes")
        where, name, floats = start + info.header_offset, info.filename, storages.get(info.filename)
        yield ZipMember(name=name, position=where, size_bytes=info.file_size, crc=info.CRC, zipped=True, floats=floats)


def pickle_of(descriptor: int, size: int) -> bytes | None:
    """The pickle that a file of torch.save consists of, unexecuted; None where it can't be read."""
    try:
        with _zip(descriptor, 0, size) as archive:
            return _pickle(archive)[1]
    except (UnsoundError, OSError):
        return None


def is_closed(descriptor: int, size: int) -> bool:
    """Whether a file of torch.save has its end, which is written last."""
    try:
        _zip(descriptor, 0, size).close()
    except (UnsoundError, OSError):
        return os.pread(descriptor, len(_LEGACY), 0) == _LEGACY
    return True


def safetensors_members(descriptor: int, size: int) -> Iterator[ZipMember]:
    """The tensors of a safetensors file, by position, after its header was compared with its size. UnsoundError."""
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if size < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise UnsoundError(f"its header would have {length} bytes, and the file has {size}")
    try:
        text = os.pread(descriptor, length, 8)
        if (why := json_too_large(text)) is not None:
            raise UnsoundError(f"its header {why}")
        tensors = []
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                if (type(begin), type(end)) != (int, int):
                    raise TypeError
                tensors.append((begin, end, name, str(entry["dtype"])))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnsoundError(f"its header is not safetensors': {type(error).__name__}") from error
    at = 0
    for begin, end, name, kind in sorted(tensors):
        if begin != at or end < begin:
            raise UnsoundError(f"{shown(name)} should begin at {at}, and its header says {begin} to {end}")
        at = end
        where = 8 + length + begin
        floats = _SAFETENSORS.get(kind)
        yield ZipMember(name=name, position=where, size_bytes=end - begin, crc=None, zipped=False, floats=floats)
    if 8 + length + at != size:
        raise UnsoundError(f"it has {size} bytes, and its header describes {8 + length + at}")


def dcp_members(descriptor: int, pieces: Sequence[tuple[int, int]]) -> Iterator[ZipMember]:
    """The members of torch.distributed.checkpoint's pieces, (offset, bytes) each; most are torch.save's archives."""
    for offset, size in pieces:
        if os.pread(descriptor, 2, offset) == b"PK":
            yield from torch_members(descriptor, offset, size)


def _zip(descriptor: int, start: int, size: int) -> zipfile.ZipFile:
    window = _Window(descriptor, start, size)
    try:
        archive = zipfile.ZipFile(window)
        window.most = LARGEST_BYTES  # its pickle is read whole
        return archive
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError, EOFError) as error:
        raise UnsoundError(f"it is not whole as torch.save writes it: {error}") from error


def _storages(archive: zipfile.ZipFile) -> dict[str, str]:
    """Member's name -> type of its numbers, for what the pickle names as a storage of floats."""
    prefix, data = _pickle(archive)
    if data is None:
        return {}
    found: dict[str, str] = {}
    try:
        for seen in read_pickle(data):
            match seen:
                case Persistent((_, Global(_, kind), str(key), *_)) if kind in _STORAGES:
                    found[f"{prefix}data/{key}"] = _STORAGES[kind]
    except PickleError:
        return {}  # its CRC is checked all the same; only the search for nan is not possible
    return found if _little_endian(archive, prefix) else {}


def _pickle(archive: zipfile.ZipFile) -> tuple[str, bytes | None]:
    info = next((i for i in archive.infolist() if i.filename.endswith("/data.pkl")), None)
    if info is None or max(info.file_size, info.compress_size) > LARGEST_BYTES or info.compress_type:
        return "", None
    return info.filename.removesuffix("data.pkl"), _content(archive, info)


def _little_endian(archive: zipfile.ZipFile, prefix: str) -> bool:
    info = next((i for i in archive.infolist() if i.filename == f"{prefix}byteorder"), None)
    if info is None:
        return True  # written before torch 2.1
    return info.compress_type == 0 and info.file_size < 16 and _content(archive, info) == b"little"


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        return archive.read(info)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise UnsoundError(f"{shown(info.filename)} can't be read: {error}") from error


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


class MemberChecks:
    """The checks of one file's members; `feed` takes its bytes from the first to the last."""

    def __init__(self, descriptor: int, size: int, members: Iterator[ZipMember], *, crcs: bool) -> None:
        self._descriptor, self._size, self._members, self._crcs = descriptor, size, members, crcs
        self._member: ZipMember | None = None
        self._start: int | None = None  # of the member's data; None until it is known
        self._ended_at = self._crc = 0
        self._rest = b""  # a number that the last piece broke off in
        self._advance()

    def feed(self, position: int, view: memoryview) -> None:
        """The next bytes, which begin at this position of the file. UnsoundError when a member is not whole."""
        end = position + len(view)
        while (member := self._member) is not None and member.position < end:
            if self._start is None:
                self._start = self._data_start(member, position, view)
            stop = self._start + member.size_bytes
            low, high = max(self._start, position), min(stop, end)
            piece = view[low - position : high - position]
            if self._crcs and member.crc is not None:
                self._crc = zlib.crc32(piece, self._crc)
            if member.floats is not None and self._holds_nan(piece, member.floats):
                raise UnsoundError(f"{shown(member.name)} ({member.floats}) holds nan")
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

    def _data_start(self, member: ZipMember, position: int, view: memoryview) -> int:
        start = member.position
        if member.zipped:
            header = bytes(view[start - position :][:_LOCAL_HEADER_BYTES]) if start >= position else b""
            if len(header) < _LOCAL_HEADER_BYTES:  # across two pieces
                header = os.pread(self._descriptor, _LOCAL_HEADER_BYTES, start)
            if len(header) < _LOCAL_HEADER_BYTES or header[:4] != b"PK\x03\x04":
                raise UnsoundError(f"{shown(member.name)} is not where the archive's directory says")
            start += _LOCAL_HEADER_BYTES + int.from_bytes(header[26:28], "little")
            start += int.from_bytes(header[28:30], "little")
        if start + member.size_bytes > self._size:
            raise UnsoundError(f"{shown(member.name)} ends beyond the end of the file")
        return start

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
