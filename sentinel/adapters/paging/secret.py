"""A token, a password, a secret address: read where the configuration says, each time it is needed, and never kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sentinel import bounded
from sentinel.vocabulary.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Where one is. Neither its repr nor its errors say what it is."""

    what: str  # the key that it stands for, e.g. "token"
    plain: str | None = None  # what the configuration says itself: a user's name, an address that is no secret
    env: str | None
    file: Path | None
    environ: Mapping[str, str] = field(repr=False)

    def __bool__(self) -> bool:
        return not (self.plain is None and self.env is None and self.file is None)

    def check(self) -> None:
        """ConfigError when there should be one and is not."""
        if self:
            self.read()

    def read(self) -> str:
        """What it is. ConfigError names the variable or the file that does not have it."""
        if self.plain is not None:
            return self.plain
        try:
            found = self.environ[self.env or ""].strip() if self.file is None else bounded.read_secret(self.file)
        except KeyError:
            raise ConfigError(f"{self.what}_env: the environment has no {self.env}") from None
        except OSError as error:
            raise ConfigError(f"{self.what}_file: {self.file} can't be read: {error.strerror}") from error
        if (why := bounded.why_no_secret(found)) is not None:
            raise ConfigError(f"{self.what}: {self.env} {why}")
        return found
