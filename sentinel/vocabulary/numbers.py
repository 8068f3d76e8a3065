"""Numbers in JSON, where nan and infinity have no spelling of their own.

In every JSON file of ours nan and the infinities are the strings "nan", "inf" and "-inf"; null means not measured.

What no trainer can have counted, and no clock can have shown, is no reading: a line that holds it can't be read. So
nothing behind the decoders meets a number that its arithmetic, its arrays or its calendar can't hold.
"""

from __future__ import annotations

import json
import math
from typing import Any

from sentinel.vocabulary.errors import LineError

# Of what is counted: steps, tokens, samples. A float, and so any reader of JSON, holds it to the last digit.
LARGEST_WHOLE = 2**53
LATEST_UNIX_S = 1e11  # The year 5138: a time beyond it was not written in seconds
_LONGEST_SHOWN = 100
_MOST_VALUES = 2_000_000
_FEW_CHARACTERS = 1 << 20


def json_too_large(text: str | bytes, most: int = 12_000_000) -> str | None:
    """Why the JSON text is not to be decoded, as the end of a sentence; None where it may be.

    Each of its values becomes an object of about a hundred bytes, however few bytes of text it has.
    """
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


def whole_problem(value: int) -> str | None:
    """What is wrong with the number as a count, as the end of a sentence; None where nothing is."""
    if 0 <= value <= LARGEST_WHOLE:
        return None
    return f"should be from 0 to 2^53, and is {'negative' if value < 0 else 'larger'}"


def seconds_problem(value: float) -> str | None:
    """What is wrong with the number as a Unix time in seconds; None where nothing is. nan is "no clock"."""
    if math.isnan(value) or 0 <= value < LATEST_UNIX_S:
        return None
    return f"should be in seconds since 1970, and {value:g} is not"


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
