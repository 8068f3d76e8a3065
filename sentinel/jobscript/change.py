"""What can be changed in a job script, and what comes of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.errors import ConfigError

_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOption:
    """The trainer gets this option with this value, whether it had the option before or not."""

    flag: str  # Whole name with its dashes, as `--lr`. Abbreviations are not looked for: Megatron's parser takes none.
    value: str | None = None  # None for a switch, which has no value

    def __post_init__(self) -> None:
        _check(_FLAG, self.flag, "an option")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOption:
    """The trainer no longer gets this option, wherever in its arguments it stood; nothing where it did not."""

    flag: str
    values: int | None = None
    """How many values go with it; None for all words up to the next option. Refused where the script has fewer."""

    def __post_init__(self) -> None:
        _check(_FLAG, self.flag, "an option")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVariable:
    """The script's only assignment of this variable gets this value; everything that uses the variable follows."""

    name: str
    value: str  # One plain word: where a variable's value ends up (arithmetic, eval, a JSON) can't be followed

    def __post_init__(self) -> None:
        _check(_NAME, self.name, "a variable")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetJson:
    """The DeepSpeed JSON, which the script writes from a here-document, gets this value at this path."""

    path: tuple[str, ...]  # Keys from the top; objects that are missing on the way are made
    value: Any  # Anything that JSON holds

    def __post_init__(self) -> None:
        if not self.path or not all(key.isascii() for key in self.path):
            raise ConfigError(f"{self.path!r} is not the path of a key of the DeepSpeed JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDirective:
    """An `#SBATCH` line gets this value, or is added below the others."""

    flag: str  # The long name, as `--time`; a line that has the short one (`-t`) is found, too
    value: str

    def __post_init__(self) -> None:
        _check(_FLAG, self.flag, "an sbatch option")


Change = SetOption | RemoveOption | SetVariable | SetJson | SetDirective


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Bytes of a script that are replaced by others."""

    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A job script after its changes."""

    text: str
    diff: str  # Unified, from the script as it was; empty where nothing had to change
    changed_lines: tuple[int, ...]
    """Lines of the script as it was, counted from 1, that were replaced, removed or had one added before them."""


def _check(pattern: re.Pattern[str], name: str, what: str) -> None:
    if not pattern.fullmatch(name):
        raise ConfigError(f"{name!r} is not the name of {what}")
