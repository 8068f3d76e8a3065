"""Numbers in documents: how JSON spells nan and infinity, and the ranges that a number may lie in."""

from __future__ import annotations

import json
import math
import typing
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from sentinel.vocabulary.errors import LineError

LARGEST_WHOLE = 2**53  # Of what is counted (steps, tokens, samples): a float holds it to the last digit
LATEST_UNIX_S = 1e11  # The year 5138: a time beyond it was not written in seconds
_LONGEST_SHOWN = 100
_MOST_VALUES = 2_000_000
_FEW_CHARACTERS = 1 << 20


def json_too_large(text: str | bytes, most: int = 12_000_000) -> str | None:
    """Why the JSON text is not to be decoded, as the end of a sentence; None where it may be. Each of its values
    becomes an object of about a hundred bytes, however few bytes of text it has."""
    if len(text) <= _FEW_CHARACTERS:
        return None
    marks: tuple[Any, ...] = (",", ":", "[", "{") if isinstance(text, str) else (b",", b":", b"[", b"{")
    return f"holds more than {most:,} values" if sum(map(text.count, marks)) > most else None


NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # How JSON spells the floats that are not finite


def to_json(value: Any) -> Any:
    """The value with every non-finite float spelled as a string, in dicts, lists and tuples too."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """One JSON document (one line, unless an indent is given) that any JSON reader takes."""
    return json.dumps(to_json(value), allow_nan=False, indent=indent)


def to_number(value: Any, key: str) -> float | None:
    """A float from what JSON held: a number, "nan", "inf", "-inf", or None for null. LineError names the key."""
    if value is None:
        return None
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise LineError(f"{key} is too large for a float") from None
    raise LineError(f'{key} should be a number, "nan", "inf", "-inf" or null, not {shown(value)}')


def load_object(line: str) -> dict[str, Any]:
    """The JSON object that the text holds. LineError when it holds anything else, or text that can't be written."""
    if (why := json_too_large(line, _MOST_VALUES)) is not None:
        raise LineError(f"the JSON text {why}")
    try:
        data = json.loads(line)
        if "\\ud" in line or "\\uD" in line:  # half of a pair is no character: no file and no terminal takes it
            json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogateescape")  # a file's name may have bytes
    except UnicodeEncodeError as error:
        raise LineError("a text in it holds half of a surrogate pair") from error
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise LineError(f"a JSON object was expected, not {type(data).__name__}")
    return data


def shown(value: Any) -> str:
    """Enough of a value to be recognised; a number may have more digits than Python would print."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too large to be shown"
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """From `least` (or above `above`) to `most` (or below `below`); inf only where there is no end."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    nan: bool = False  # Whether nan is in it
    physical: bool = False  # Whether no measurement can lie outside: a record that does is unreadable
    words: str = ""  # What errors call it, where the ends by themselves are hard to read

    def __contains__(self, number: float) -> bool:
        if number != number:
            return self.nan
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
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
UNIX_SECONDS = Range(least=0, below=LATEST_UNIX_S, nan=True, physical=True, words="in seconds since 1970")
UnixSeconds = Annotated[float, UNIX_SECONDS]


def ranges_of(cls: type[Any]) -> dict[str, Range]:
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
