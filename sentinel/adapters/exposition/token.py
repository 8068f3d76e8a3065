"""The bearer token that a scrape has to bring, from a file. It is in no log, no error and no repr."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from sentinel import bounded
from sentinel.vocabulary.errors import ConfigError

__all__ = ["SHORTEST", "Token"]

log = logging.getLogger(__name__)

SHORTEST = 16
"""Characters: a shorter one could be guessed by who may try for days."""


class Token:
    """Read for each request, so that a changed one is asked for at once; nobody is let in while it can't be read."""

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
        try:
            token = bounded.read_text(self._path, bounded.SECRET_BYTES).strip()
        except OSError as error:
            raise ConfigError(f"token_file: {self._path} can't be read: {error.strerror}") from error
        if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError(
                f"token_file: {self._path} should hold {SHORTEST} visible ASCII characters or more, alone"
            )
        return token
