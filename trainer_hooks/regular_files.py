"""Files that a setting names, read without waiting: a pipe in a file's place must not hold up the trainer."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 1 << 20  # a password, a certificate with its chain, a key, a configuration


def read_regular(path: Path) -> bytes:
    """All of the file. OSError, which says why, also where it is no regular file or has more than 1 MiB."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0, closefd=True) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        data = bytearray()
        while block := file.read(MOST_BYTES + 1 - len(data)):
            data += block
        if len(data) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB", str(path))
        return bytes(data)
