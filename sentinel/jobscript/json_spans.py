"""Where the members of a JSON object stand in their text; `json` itself says what they hold, and not where."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sentinel.vocabulary.errors import LineError

_BLANKS = re.compile(r"[ \t\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One `"key": value` of an object; positions are of the value."""

    key: str
    key_start: int
    start: int
    end: int


def members(text: str, start: int) -> list[Member]:
    """The members of the object whose `{` stands at `start`. LineError where it is not JSON."""
    found: list[Member] = []
    position = _skip(text, start + 1)
    while not text.startswith("}", position):
        if found:
            position = _expect(text, position, ",")
        key, end = _value(text, position)
        if not isinstance(key, str):
            raise LineError(f"a key is {key!r}")
        value_start = _expect(text, _skip(text, end), ":")
        _, value_end = _value(text, value_start)
        found.append(Member(key=key, key_start=position, start=value_start, end=value_end))
        position = _skip(text, value_end)
    return found


def insertion_point(text: str, start: int, inside: list[Member]) -> tuple[int, str | None]:
    """Where another member goes, and its indentation; None for an object on one line, or an empty one."""
    if not inside:
        return start + 1, None
    indent = text[: inside[-1].key_start].rpartition("\n")[2]
    return inside[-1].end, indent if not indent.strip() else None


def _value(text: str, position: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise LineError(f"line {error.lineno} is not JSON: {error.msg}") from error


def _skip(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found is not None else position


def _expect(text: str, position: int, mark: str) -> int:
    if not text.startswith(mark, position):
        line = text.count("\n", 0, position) + 1
        raise LineError(f"line {line} is not JSON: a {mark!r} is missing")
    return _skip(text, position + 1)
