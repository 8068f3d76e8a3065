"""A token, a password, a secret address: read where the configuration says, each time it is needed, and never kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sentinel import bounded
from sentinel.vocabulary.errors import ConfigError

__all__ = ["Secret"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Where one is. Neither its repr nor its errors say what it is."""

    what: str
    """The key that it stands for, e.g. "token"."""

    plain: str | None = None
    """What the configuration says itself: a user's name, an address that is no secret."""

    env: str | None
    file: Path | None
    environ: Mapping[str, str] = field(repr=False)

    def __bool__(self) -> bool:
        """Whether there is one at all."""
        return not (self.plain is None and self.env is None and self.file is None)

    def check(self) -> None:
        """ConfigError when there should be one and is not."""
        if self:
            self.read()

    def read(self) -> str:
        """What it is. ConfigError names the variable or the file that does not have it."""
        if self.plain is not None:
            return self.plain
        found = self._of_file(self.file) if self.file is not None else self._of_environment()
        found = found.strip()
        if (
            not found or not found.isprintable()
        ):  # a line break in a header would be quoted in the error that refuses it
            raise ConfigError(
                f"{self.what}: {self.env or self.file} should hold one line, of characters that can be seen"
            )
        return found

    def _of_environment(self) -> str:
        try:
            return self.environ[self.env or ""]
        except KeyError:
            raise ConfigError(f"{self.what}_env: the environment has no {self.env}") from None

    def _of_file(self, path: Path) -> str:
        try:
            return bounded.read_text(path, bounded.SECRET_BYTES)
        except OSError as error:
            raise ConfigError(f"{self.what}_file: {path} can't be read: {error.strerror}") from error
