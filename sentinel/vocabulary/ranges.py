"""The range that a number of a document may lie in, written beside its type: `Annotated[int, AT_LEAST_1]`."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from sentinel.vocabulary.numbers import LARGEST_WHOLE, LATEST_UNIX_S, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """From `least` (or above `above`) to `most` (or below `below`); inf only where there is no end."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    nan: bool = False  # Whether nan is in it
    # Whether no measurement can lie outside: a record that does is unreadable, where another is only unwise.
    physical: bool = False
    words: str = ""  # What errors call it, where the ends by themselves are hard to read

    def __contains__(self, number: float) -> bool:
        """Whether the number lies in it."""
        if number != number:
            return self.nan
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """`at least 1`, `above 0`, `at least 0 and below 1`; that inf is too much goes without saying."""
        if self.words:
            return self.words
        ends = [
            f"at least {self.least:g}" if self.least is not None else "",
            f"above {self.above:g}" if self.above is not None else "",
            f"at most {self.most:g}" if self.most is not None else "",
            f"below {self.below:g}" if self.below is not None and math.isfinite(self.below) else "",
        ]
        return " and ".join(end for end in ends if end)


AT_LEAST_0 = Range(least=0, below=math.inf)
AT_LEAST_1 = Range(least=1, below=math.inf)
POSITIVE = Range(above=0, below=math.inf)
POSITIVE_OR_INF = Range(above=0)
SHARE = Range(least=0, below=1)
COUNT = Range(least=0, most=LARGEST_WHOLE, physical=True, words="from 0 to 2^53")
# Of a seed, which counts nothing.
SIXTY_FOUR_BITS = Range(least=-(2**63), below=2**64, physical=True, words="a whole number of 64 bits")
# A time; nan where the source has no clock.
UnixSeconds = Annotated[
    float, Range(least=0, below=LATEST_UNIX_S, nan=True, physical=True, words="in seconds since 1970")
]


def ranges_of(cls: type[Any]) -> dict[str, Range]:
    """Field name to its range, of the fields that have one."""
    found = {}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if (wanted := next((extra for extra in extras if isinstance(extra, Range)), None)) is not None:
            found[name] = wanted
    return found


def outside(value: Any) -> str | None:
    """What is wrong with the first number of a dataclass that is not in its range, as a sentence; None for none."""
    problems = (out_of_range(wanted, getattr(value, key), key) for key, wanted in ranges_of(type(value)).items())
    return next((problem for problem in problems if problem is not None), None)


def out_of_range(wanted: Range, value: object, key: str) -> str | None:
    """What is wrong with the value, or with one number of a list, as a sentence; None where nothing is."""
    if isinstance(value, tuple):
        items = (out_of_range(wanted, item, f"{key}[{i}]") for i, item in enumerate(value))
        return next((problem for problem in items if problem is not None), None)
    if isinstance(value, bool) or not isinstance(value, int | float) or value in wanted:
        return None
    finite = "" if wanted.words or math.isfinite(value) else "a finite number "
    return f"{key} should be {finite}{wanted}, not {shown(value)}"
