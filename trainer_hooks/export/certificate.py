"""The certificate of /metrics: a renewed pair is taken up whole, or not at all."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer_hooks.regular_files import read_regular


class Certificate:
    """A certificate and its key, as their files hold them. While they hold no pair, the one before serves."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """OSError, of which ssl.SSLError is one, where the files hold no pair."""
        self._files = certificate, key
        self._tried = self._written()
        self._context = self._load()

    def current(self) -> ssl.SSLContext:
        """For the next connection. Files that have not changed since they were tried are not read again."""
        with suppress(OSError):  # half-way through a renewal, it may be: the next change is tried again
            written = self._written()
            if written != self._tried:
                self._tried = written
                self._context = self._load()
        return self._context

    def _written(self) -> list[tuple[int, int, int]]:
        found = [path.stat() for path in self._files]
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found]

    def _load(self) -> ssl.SSLContext:
        """A context of its own: one that is given a certificate and then no key to it is of no use any more."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate, key = (read_regular(path) for path in self._files)
        with _in_memory(certificate) as certificate_path, _in_memory(key) as key_path:
            context.load_cert_chain(certificate_path, key_path, password=lambda: b"")  # or OpenSSL asks the terminal
        return context


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A file of these bytes that nobody changes: OpenSSL reads by a path only."""
    with os.fdopen(os.memfd_create("sentinel-pem", os.MFD_CLOEXEC), "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
