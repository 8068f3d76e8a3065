"""What a part is, and what it is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["UNFINISHED", "Case", "Part", "Row", "Setting"]

Row = dict[str, Any]
"""One case's figures, as JSON."""

Case = Callable[[], Row]

UNFINISHED = "unfinished"
"""Key of a row that has figures but is not done: what is missing, as a sentence. The next call goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how large."""

    device: str
    """cuda or cpu."""

    quick: bool
    """The shrunken form: it shows that the part runs, and its figures say nothing."""

    folder: Path
    """Of the part's own files."""

    until: float
    """time.monotonic() at which the part is stopped."""

    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


class Part(Protocol):
    """A module of this package. It imports torch and DeepSpeed inside its functions: `table` and `faults` run without
    them."""

    TITLE: str

    def cases(self, setting: Setting) -> Mapping[str, Case]:
        """{name: what measures it}, the most valuable first; a case may raise."""
        ...

    def table(self, rows: Mapping[str, Row]) -> str:
        """The figures of the cases that are there."""
        ...

    def faults(self, rows: Mapping[str, Row]) -> Sequence[str]:
        """What is not as it has to be: a wrong reading, a missed goal; a sentence each."""
        ...
