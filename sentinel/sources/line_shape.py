"""Lines that differ in their numbers alone, read by one pattern, many at once.

The shape of a line is learned from its decoder: each number is changed, and what then changes in the reading is what
that number is. A number that changes nothing may be any; one that changes anything else than the value of one field
(a rank, the total, a name with a digit) stays as it is. So a line that matches is read as its decoder would read it.
A line with nan, an infinite value, or a loss of 0 or less has no shape and matches none: its decoder reads it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from sentinel.sources.alike_lines import LineShape, Read
from sentinel.sources.line_events import BESIDE, LineReading
from sentinel.sources.line_text import time_of

_CLOCK = r"[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?:Z|[-+][0-9]{2}:?[0-9]{2}(?![0-9]))?"
_YEAR = r"(?:19[89]|20[0-9])[0-9]"
_TIME = rf"(?<![0-9])(?:{_YEAR}[-/][0-9]{{2}}[-/][0-9]{{2}}|[0-9]{{2}}/[0-9]{{2}}/{_YEAR}){_CLOCK}"
_NUMBER = r"(?:(?<=[\s:=('\"])[-+])?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_TOKEN = re.compile(rf"({_TIME})|{_NUMBER}")
_LOOSE_CLOCK = re.compile(r"0[ T] *0:0:0")  # with a date before it that is no token: its parts together are a time
_BEGINS_LINE = re.compile(r"\s*\[?")  # a number there is a rank where it has few digits
_GOES_ON = (".", "_", "e", "E")  # what follows no number that ends there
_OTHER_DIGITS = tuple(str.maketrans("0123456789", other) for other in ("2345678912", "5678912345"))
_BLANKS = (" ", "  ", " " * 9)  # before a number that is padded
_MOST_TOKENS, _LONGEST, _LONGEST_HEAD = 64, 2_000, 300

_WHOLE = r"[0-9]{1,15}"


def _milliseconds(text: str) -> float:
    return float(text) / 1000


def shape_of(line: str, read: Callable[[str], LineReading | None]) -> LineShape | None:
    """The shape of a line; None where its step or its loss is no number of it, or the shape would not hold. `read`
    gives what a line is read as that has no line before it."""
    tokens = list(_TOKEN.finditer(line))
    reading = read(line) if 0 < len(tokens) <= _MOST_TOKENS and len(line) <= _LONGEST else None
    skeleton = _TOKEN.sub(lambda token: "t" if token[1] else "0", line)
    if reading is None or reading.fields.get("skipped") or _LOOSE_CLOCK.search(skeleton) or _is_odd(reading):
        return None
    groups: list[tuple[str, Read]] = []
    parts, at, head = [], 0, len(line)
    for token in tokens:
        literal, at = line[at : token.start()], token.end()
        found = _field_of(token, line, reading, read)
        if found is None:
            parts += [re.escape(literal), re.escape(token[0])]
            continue
        name, how, place = found
        words = literal.rstrip(" ")
        padded = words != literal and (name or words.endswith((":", "=", "|")))  # `rank 3` and `rank  3` are not alike
        before = line[: token.start() - len(literal) + len(words)]
        padded = padded and not any(_changed(reading, read(before + b + line[token.start() :])) for b in _BLANKS)
        parts.append(re.escape(words) + " {1,40}" if padded else re.escape(literal))
        parts.append(f"({place})" if name else place)
        if name:
            groups.append((name, how))
        if name and name != "time_unix_s":
            head = min(head, token.start())
    named = [name for name, _ in groups]
    if "loss" not in named or len(set(named)) < len(named) or head > _LONGEST_HEAD:
        return None
    fields = {field: value for field, value in reading.fields.items() if field not in (*BESIDE, "skipped")}
    pattern = re.compile("".join(parts) + re.escape(line[at:]))
    return LineShape(pattern, tuple(groups), fields, reading.rank, reading.total_steps)


def _field_of(
    token: re.Match[str], line: str, reading: LineReading, read: Callable[[str], LineReading | None]
) -> tuple[str, Read, str] | None:
    """The field (empty: of none) that a number is, how it is read, and the pattern of its place; None where the number
    has to stay."""

    def changed(text: str) -> dict[str, Any]:
        """The values that differ where the number is that text."""
        return _changed(reading, read(line[: token.start()] + text + line[token.end() :]))

    def fits(how: Read, *texts: str) -> bool:
        was = _values(reading).get(name)
        try:
            found = [({name: was} | changed(text), how(text)) for text in texts]
        except ValueError:
            return False
        return all(now.keys() == {name} and _alike(now[name], value) for now, value in found)

    others = _others(token)
    names = {name for text in others for name in changed(text)}
    if not names:
        end = token[0].lstrip("+-0123456789,")  # the point and what follows
        stays = not _may_be_any(token) or any(changed(digits + end) for digits in ("7", "777,777", "7" * 12))
        return None if stays else ("", float, _any_number(token))
    name = names.pop()
    if names or name in ("rank", "total_steps", "skipped") or line[token.end() :].startswith(_GOES_ON):
        return None
    how = next((how for how in (int, float, _milliseconds, time_of) if fits(how, token[0], *others)), None)
    if how is None or (how is int and not fits(int, "7", "7" * 15)):
        return None
    if how in (int, time_of):
        return name, how, f"(?>{_WHOLE if how is int else _TIME})"
    sign = "[-+]?" * fits(how, "-7.25", "+7.25")
    exponent = r"(?:[eE][-+]?[0-9]{1,2})?" * fits(how, "7.25e-05", "7E+05")
    point = r"(?:\.[0-9]{1,20})" + "?" * fits(how, "7")
    if name == "loss":  # 0, or less, may stand for something else than a loss
        sign = r"(?!0+(?:\.0+)?(?![0-9.]))"
    return name, how, f"(?>{sign}[0-9]{{1,17}}{point}{exponent})"


def _others(token: re.Match[str]) -> list[str]:
    """Two other numbers of the same form, or two other times."""
    text = token[0]
    if token[1]:
        return [re.sub(r"[0-9]{2}:[0-9]{2}:[0-9]{2}", clock, text, count=1) for clock in ("01:02:03", "21:32:43")]
    end = len(text) - len(text.lower().partition("e")[2])  # the exponent stays
    return [text[:end].translate(digits) + text[end:] for digits in _OTHER_DIGITS]


def _any_number(token: re.Match[str]) -> str:
    if token[1]:
        return re.sub(r"[0-9]", "[0-9]", re.escape(token[0]))
    sign = re.escape(token[0][0]) if token[0][0] in "-+" else ""
    point = r"\.[0-9]{1,18}" if "." in token[0] else ""
    exponent = r"[eE][-+]?[0-9]{1,2}" if "e" in token[0].lower() else ""
    return rf"(?>{sign}(?:[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,5}}|[0-9]{{1,12}}){point}{exponent})"


def _may_be_any(token: re.Match[str]) -> bool:
    """Not a digit of a name, nor at the beginning of the line, nor a time that never was."""
    before = token.string[: token.start()]
    if token[1] and math.isnan(time_of(token[0])):
        return False
    return _BEGINS_LINE.fullmatch(before) is None and not (before[-1].isalnum() or before[-1] in "_./-")


def _is_odd(reading: LineReading) -> bool:
    """Whether a value is nan or infinite, which changes what the others mean, or the loss is 0 or less."""
    numbers = (value for name, value in _values(reading).items() if type(value) is float and name != "time_unix_s")
    return not all(map(math.isfinite, numbers)) or not (reading.loss or 0.0) > 0.0


def _values(reading: LineReading) -> dict[str, Any]:
    ours = {"step": reading.step, "loss": reading.loss, "rank": reading.rank, "total_steps": reading.total_steps}
    return ours | reading.fields


def _changed(reading: LineReading, other: LineReading | None) -> dict[str, Any]:
    """The values of the other that differ; a missing one is `rank`, which no number may change."""
    if other is None:
        return {"rank": None}
    was, now = _values(reading), _values(other)
    names = was.keys() | now.keys()
    return {name: now.get(name) for name in names if not _alike(was.get(name), now.get(name))}


def _alike(one: Any, other: Any) -> bool:
    if type(one) is float and type(other) is float and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)
