"""Files of STATE_DIR/cache: what depends on nothing but what they are `of`, whole or of no use."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec

from sentinel.bounded import open_regular
from sentinel.durable import write_atomically
from sentinel.vocabulary.errors import SentinelError

FOLDER = "cache"
_MAGIC = b"sentinel cache 1"
_MOST_BYTES, _MOST_UNPACKED = 64 << 20, 512 << 20


class NotUsableError(Exception):
    """The file is not there, is damaged, or is of something else."""


def write_sealed(path: Path, of: bytes, data: Any) -> bool:
    """Whether it was written: not where it would be large, or in a state folder of another user, whose own sentinel
    could not replace it; nor where it can't be."""
    try:
        if path.parent.parent.stat().st_uid != os.geteuid():
            return False
        body = zlib.compress(msgspec.msgpack.encode(data), 1)
        if len(body) > _MOST_BYTES:
            return False
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, b"\n".join((_MAGIC, of, hashlib.sha256(body).hexdigest().encode(), body)))
    except (OSError, SentinelError, OverflowError, msgspec.MsgspecError):
        return False
    return True


def read_sealed(path: Path, of: bytes) -> Any:
    """The data. NotUsableError."""
    try:
        with open_regular(path) as file:
            magic, known, checked, body = file.read(_MOST_BYTES + 4096).split(b"\n", 3)
        if (magic, known) != (_MAGIC, of):
            raise NotUsableError(f"{path} is of another version, run or configuration")
        if hashlib.sha256(body).hexdigest().encode() != checked:
            raise NotUsableError(f"{path} is torn")
        return msgspec.msgpack.decode(zlib.decompressobj().decompress(body, _MOST_UNPACKED))
    except (OSError, ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise NotUsableError(f"{path}: {error}") from error
