"""The parts of a checkpoint's file, found without unpickling: torch's zip archives, safetensors, DCP's pieces."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.adapters.checkpoints.pickled import LARGEST_BYTES, Persistent, PickleError, read_pickle
from sentinel.adapters.checkpoints.shown import shown
from sentinel.vocabulary.numbers import json_too_large

__all__ = ["Member", "UnsoundError", "Window", "dcp_members", "pickle_of", "safetensors_members", "torch_members"]

_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""What torch.save began a file with before torch 1.6."""

_LARGEST_DIRECTORY = 16 << 20
"""Of a zip archive: that of 200,000 storages. Each of its entries becomes an object."""
_LARGEST_HEADER = 100_000_000
"""The limit of the safetensors library itself."""

_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "float32",
    "ComplexDoubleStorage": "float64",
}
_SAFETENSORS = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "C64": "float32"}


class UnsoundError(ValueError):
    """What is wrong with a file, as a sentence that begins after the file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A run of bytes in a file that can be checked by itself."""

    name: str
    position: int
    """Where it begins in the file: its local header in a zip archive, its first byte in safetensors."""

    size_bytes: int
    crc: int | None
    """CRC-32 of its bytes; None where the format has none."""

    zipped: bool
    """Whether a local header of its own length stands before its bytes."""

    floats: str | None
    """float32, float64, float16 or bfloat16 where it holds such numbers and nothing else."""


class Window(io.RawIOBase):
    """A part of an open file as a file of its own; a read beyond what any checkpoint needs is refused."""

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        super().__init__()
        self._descriptor, self._start, self._size, self._at = descriptor, start, size, 0
        self.most = _LARGEST_DIRECTORY
        """Bytes that a read may ask for."""

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"a seek to {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        size = left if size < 0 else min(size, left)
        if size > self.most:
            raise zipfile.BadZipFile(f"its directory claims {size} bytes, and the limit is {self.most >> 20} MiB")
        data = os.pread(self._descriptor, size, self._start + self._at)
        self._at += len(data)
        return data


def torch_members(descriptor: int, start: int, size: int, *, digested: bool = False) -> Iterator[Member]:
    """The members of what torch.save wrote into this part of a file, by position. UnsoundError.

    digested: whether the whole file is held against a digest: then one of before torch 1.6 can be verified, too.
    """
    head = os.pread(descriptor, len(_LEGACY), start)
    if head == _LEGACY and digested:
        return
    if head == _LEGACY:
        raise UnsoundError("it has torch's format from before 1.6, which has no checksums: it can't be verified")
    with _zip(descriptor, start, size) as archive:
        infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
        storages = _storages(archive)
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 0x1:
            raise UnsoundError(f"{shown(info.filename)} is compressed or encrypted, which torch.save does not do")
        if info.compress_size != info.file_size:
            raise UnsoundError(f"{shown(info.filename)} has two sizes, {info.compress_size} and {info.file_size} bytes")
        yield Member(
            name=info.filename,
            position=start + info.header_offset,
            size_bytes=info.file_size,
            crc=info.CRC,
            zipped=True,
            floats=storages.get(info.filename),
        )


def pickle_of(descriptor: int, size: int) -> bytes | None:
    """The pickle that a file of torch.save consists of, unexecuted; None where it can't be got at."""
    try:
        with _zip(descriptor, 0, size) as archive:
            return _pickle(archive)[1]
    except (UnsoundError, OSError):
        return None


def safetensors_members(descriptor: int, size: int) -> Iterator[Member]:
    """The tensors of a safetensors file, by position, after its header was held against its size. UnsoundError."""
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if size < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise UnsoundError(f"its header would have {length} bytes, and the file has {size}")
    try:
        text = os.pread(descriptor, length, 8)
        if (why := json_too_large(text)) is not None:
            raise UnsoundError(f"its header {why}")
        header = json.loads(text)
        tensors = sorted(_tensor(name, entry) for name, entry in header.items() if name != "__metadata__")
    except UnsoundError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnsoundError(f"its header is not safetensors': {type(error).__name__}") from error
    at = 0
    for begin, end, name, kind in tensors:
        if begin != at or end < begin:
            raise UnsoundError(f"{shown(name)} should begin at {at}, and its header says {begin} to {end}")
        at = end
        where = 8 + length + begin
        floats = _SAFETENSORS.get(kind)
        yield Member(name=name, position=where, size_bytes=end - begin, crc=None, zipped=False, floats=floats)
    if 8 + length + at != size:
        raise UnsoundError(f"it has {size} bytes, and its header describes {8 + length + at}")


def dcp_members(descriptor: int, pieces: Sequence[tuple[int, int]]) -> Iterator[Member]:
    """The members of torch.distributed.checkpoint's pieces, (offset, bytes) each; most are torch.save's archives."""
    for offset, size in pieces:
        if os.pread(descriptor, 2, offset) == b"PK":
            yield from torch_members(descriptor, offset, size)


def _zip(descriptor: int, start: int, size: int) -> zipfile.ZipFile:
    window = Window(descriptor, start, size)
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
            if not isinstance(seen, Persistent) or not isinstance(seen.id, tuple) or len(seen.id) < 3:
                continue
            kind, key = _STORAGES.get(getattr(seen.id[1], "name", "")), seen.id[2]
            if kind is not None and isinstance(key, str):
                found[f"{prefix}data/{key}"] = kind
    except PickleError:
        return {}  # its CRC is checked all the same; only the search for nan is not possible
    return found if _little_endian(archive, prefix) else {}


def _pickle(archive: zipfile.ZipFile) -> tuple[str, bytes | None]:
    info = next((i for i in archive.infolist() if i.filename.endswith("/data.pkl")), None)
    if info is None or max(info.file_size, info.compress_size) > LARGEST_BYTES or info.compress_type:
        return "", None
    return info.filename.removesuffix("data.pkl"), _content(archive, info)


def _little_endian(archive: zipfile.ZipFile, prefix: str) -> bool:
    try:
        info = archive.getinfo(f"{prefix}byteorder")
    except KeyError:
        return True  # written before torch 2.1
    return info.compress_type == 0 and info.file_size < 16 and _content(archive, info) == b"little"


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        return archive.read(info)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise UnsoundError(f"{shown(info.filename)} can't be read: {error}") from error


def _tensor(name: str, entry: dict[str, Any]) -> tuple[int, int, str, str]:
    begin, end = entry["data_offsets"]
    if type(begin) is not int or type(end) is not int:
        raise TypeError
    return begin, end, name, str(entry["dtype"])
