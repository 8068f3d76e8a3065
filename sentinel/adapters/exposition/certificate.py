"""A certificate and its key, from files: what a server speaks TLS with. A renewed one is taken up by itself."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path

from sentinel.vocabulary.errors import ConfigError

__all__ = ["Certificate"]

log = logging.getLogger(__name__)

_Written = tuple[int, ...]
"""When each file was written, nanoseconds, and how long it is, bytes."""


class Certificate:
    """Read when it is made and whenever a file changes; while what is there can't be used, the one before serves."""

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        """`key` may be in the certificate's file. ConfigError, which names the file, where they can't be used."""
        self._certificate, self._key = certificate, key or certificate
        self._lock = threading.Lock()
        self._complaint = ""
        self._tried = self._written()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """For the next connection: TLS 1.2 and up."""
        with self._lock:
            try:
                written = self._written()
                if written != self._tried:
                    self._tried = written
                    self._context = self._load()
                self._complaint = ""
            except ConfigError as error:  # half-way through a renewal, it may be: the next change is tried again
                if str(error) != self._complaint:
                    log.warning("%s; the one before it still serves", error)
                self._complaint = str(error)
            return self._context

    def _written(self) -> _Written:
        found: list[int] = []
        for what, path in (("certificate", self._certificate), ("key", self._key)):
            try:
                status = path.stat()
            except OSError as error:
                raise ConfigError(f"{what}: {path} can't be read: {error.strerror}") from error
            found += (status.st_mtime_ns, status.st_size, status.st_ino)
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")  # or OpenSSL asks the terminal
        except ssl.SSLError as error:
            why = f": {error.reason}" if error.reason else ""
            raise ConfigError(
                f"certificate: {self._certificate} and the key {self._key} can't be used together{why}"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"certificate: {self._certificate} or its key {self._key} can't be read: {error.strerror}"
            ) from error
        return context
