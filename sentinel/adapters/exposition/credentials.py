"""What a server of sentinel's is trusted by and what it asks for: a certificate with its key, and a bearer token."""

from __future__ import annotations

import hmac
import logging
import ssl
import threading
from pathlib import Path

from sentinel import bounded
from sentinel.vocabulary.errors import ConfigError

log = logging.getLogger(__name__)

_SHORTEST = 16  # characters of a token: a shorter one could be guessed by who may try for days


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

    def _written(self) -> tuple[int, ...]:
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
        named = f"certificate: {self._certificate}"
        try:
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")  # or OpenSSL asks the terminal
        except ssl.SSLError as error:
            why = f": {error.reason}" if error.reason else ""
            raise ConfigError(f"{named} and the key {self._key} can't be used together{why}") from error
        except OSError as error:
            raise ConfigError(f"{named} or its key {self._key} can't be read: {error.strerror}") from error
        return context


class Token:
    """The bearer token that a scrape has to bring, from a file; it is in no log, no error and no repr. Read for each
    request, so that a changed one counts at once; no request is answered while it can't be read."""

    def __init__(self, path: Path) -> None:
        """ConfigError, which names the file, where it holds none."""
        self._path = path
        self._complaint = ""
        self._read()

    def admits(self, authorization: str | None) -> bool:
        """Whether the header brings it, found out in a time that does not depend on where it is wrong."""
        try:
            expected = self._read()
        except ConfigError as error:
            if str(error) != self._complaint:
                log.warning("nobody is shown /metrics: %s", error)
            self._complaint = str(error)
            return False
        self._complaint = ""
        scheme, _, given = (authorization or "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), expected.encode())
        return same and scheme.lower() == "bearer"

    def _read(self) -> str:
        named = f"token_file: {self._path}"
        try:
            token = bounded.read_text(self._path, bounded.SECRET_BYTES).strip()
        except OSError as error:
            raise ConfigError(f"{named} can't be read: {error.strerror}") from error
        if len(token) < _SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError(f"{named} should hold {_SHORTEST} visible ASCII characters or more, alone")
        return token
