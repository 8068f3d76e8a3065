"""What every log line may hold, whoever wrote it: numbers in many spellings, colours, ranks, times, a JSON wrapper.

Numbers: nan and inf in any case, 85.8G, 11.5K, 1,048,576, 6.4E+00, 1.2%. A wrapper is Docker's json-file, Cloud Logging
or a logger that writes objects: `{"log": " iteration 10/ 1000 | …", "time": "2024-01-01T00:00:00Z"}`; the text in it is
the line, or several lines, and the time beside it is put before each.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_WORDY = re.compile(r"\s*([-+]?(?:\d[\d,]*)?(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([KMBGT])?(?:ms|s|%|it|GiB|GB|MB)?\s*")
# Microsoft's C library, glibc with a payload, and JavaScript's sign.
_NOT_FINITE = re.compile(
    r"\s*([-+]?)(?:(nan\((?:s?nan|ind|snan|0x[0-9a-f]+)?\)|1\.#(?:[qs]nan|ind)0*)|1\.#inf0*|\u221e)\s*", re.IGNORECASE
)
_TIMES = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, None: 1.0}
_MOST = 2**63
_LONGEST = 64  # characters; a longer run of digits is not a reading


def number(text: str) -> float | None:
    """The text as a number, None where it is not one. K, M, B (or G) and T are powers of 1000."""
    if len(text) > _LONGEST:
        return None
    try:
        return float(text)
    except ValueError:
        found = _WORDY.fullmatch(text)
    if found is None:
        return not_finite(text)
    try:
        return float(found[1].replace(",", "")) * _TIMES[found[2]]
    except ValueError:
        return None


def not_finite(text: str) -> float | None:
    """nan or an infinity in a spelling that Python does not read; None for anything else."""
    found = _NOT_FINITE.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    if found[2] is not None:
        return math.nan
    return -math.inf if found[1] == "-" else math.inf


def whole(text: str) -> int | None:
    """The text as a whole number from 0 to 2^63 - 1, None where it is not one."""
    try:
        value = int(text) if len(text) <= _LONGEST else -1
    except ValueError:
        read = number(text)
        if read is None or not 0 <= read < _MOST:  # nan too
            return None
        value = round(read)
    return value if 0 <= value < _MOST else None


ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # the escapes that colour a line
_ISO = re.compile(
    r"(?<!\d)(\d{4})[-/]?(\d\d)[-/]?(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,:](\d{1,6})\d{0,3})?(Z|[-+]\d\d:?\d\d(?!\d))?"
)
_AMERICAN = re.compile(r"(?<!\d)(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)()()")
_RANK = re.compile(
    r"\[default(\d+)\]|\[rank[ :=]?(\d+)\]|\brank[ :=]?(\d+)\s*:|\bRank[ :=]?(\d+)\b|slurm_procid (\d+)"
    r"|\[1,(\d+)\]<|\brank=(\d+)\b|\bRANK[ :](\d+)\]"
    r"|^\s*\[?(\d{1,6})\]?\s*:\s|\b(DP=\d+\|(?:[CPT]P=\d+\|?)+)"
)
_PREFIX_LENGTH = 400  # characters; text further right is not a prefix


def rank_of(head: str) -> str | None:
    """The process that wrote the line, by its prefix; None where the prefix does not name one."""
    if not head or head.isspace():
        return None
    found = _RANK.search(head[:_PREFIX_LENGTH])
    return None if found is None else next((g for g in found.groups() if g is not None), None)


def time_of(head: str) -> float:
    """The first date and time in the text as Unix seconds (UTC where it names no zone); nan where there is none."""
    if len(head) < len("2024-04-06 02:59:36"):
        return math.nan
    text = head[:_PREFIX_LENGTH]
    if (found := _ISO.search(text)) is not None:
        year, month, day = found[1], found[2], found[3]
    elif (found := _AMERICAN.search(text)) is not None:
        month, day, year = found[1], found[2], found[3]
    else:
        return math.nan
    clock = f"{found[4]}:{found[5]}:{found[6]}.{found[7] or 0}{found[8] or 'Z'}"
    try:
        return datetime.fromisoformat(f"{year}-{month}-{day}T{clock}").timestamp()
    except (ValueError, OverflowError):  # the 31st of February
        return math.nan


_TEXT_KEYS = ("log", "message", "msg", "textPayload", "MESSAGE", "line", "text")
_TIME_KEYS = ("time", "timestamp", "@timestamp", "asctime", "ts", "datetime")
_WRAPPER = re.compile(r'"(?:log|message|msg|textPayload|MESSAGE|line|text)"\s*:\s*"')


def unwrapped(line: str) -> list[str] | None:
    """The lines of text within the JSON object on the line; None where the line is not such an object."""
    if _WRAPPER.search(line) is None:
        return None
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = text_within(data) if isinstance(data, dict) else None
    if text is None:
        return None
    at = _time_prefix(next((data[name] for name in _TIME_KEYS if name in data), ""))
    return [f"{at} {part}" if at else part for part in text.splitlines()]


def text_within(data: Mapping[str, Any]) -> str | None:
    """The text that the object wraps; None where the object has a loss of its own and the text is a remark."""
    if any("loss" in str(key).lower() for key in data):
        return None
    found = next((data[name] for name in _TEXT_KEYS if isinstance(data.get(name), str)), None)
    return found or None


def _time_prefix(value: Any) -> str:
    """A time as the text that lines begin with (Unix seconds are formatted); empty where it is not a time."""
    if isinstance(value, int | float) and 1e9 < value < 1e11:
        return datetime.fromtimestamp(value, UTC).isoformat(" ", "milliseconds")
    return value if isinstance(value, str) and not math.isnan(time_of(value)) else ""
