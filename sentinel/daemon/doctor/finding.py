"""What one check of `sentinel doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Answer = Literal["ok", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor."""

    answer: Answer
    what: str
    """What was checked."""

    sentence: str
    """What was found and, where it is not ok, what to do."""

    passes: bool = False
    """Whether it may pass by itself, or a recovery mends it: a watch begins all the same."""
