"""Lines that somebody else has wrapped in JSON: Docker's json-file, Cloud Logging, loggers that write objects.

`{"log": " iteration 10/ 1000 | …", "stream": "stdout", "time": "2024-01-01T00:00:00Z"}`. The text within is the line,
or several, and the time beside it stands before it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sentinel.sources.prefixes import time_of

__all__ = ["text_within", "unwrapped"]

_TEXTS = ("log", "message", "msg", "textPayload", "MESSAGE", "line", "text")
_TIMES = ("time", "timestamp", "@timestamp", "asctime", "ts", "datetime")
_KEY = re.compile(r'"(?:log|message|msg|textPayload|MESSAGE|line|text)"\s*:\s*"')


def unwrapped(line: str) -> list[str] | None:
    """The lines of the text that the object on the line holds; None where it is no such object."""
    if _KEY.search(line) is None:
        return None
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = text_within(data) if isinstance(data, dict) else None
    if text is None:
        return None
    at = _time(next((data[name] for name in _TIMES if name in data), ""))
    return [f"{at} {part}" if at else part for part in text.splitlines()]


def text_within(data: Mapping[str, Any]) -> str | None:
    """The text that such an object is about; None where it has a loss of its own, and the text is a remark."""
    if any("loss" in str(key).lower() for key in data):
        return None
    found = next((data[name] for name in _TEXTS if isinstance(data.get(name), str)), None)
    return found or None


def _time(told: Any) -> str:
    """As a text that lines begin with, which Unix seconds are made; empty where it is no time."""
    if isinstance(told, int | float) and 1e9 < told < 1e11:
        return datetime.fromtimestamp(told, UTC).isoformat(" ", "milliseconds")
    return told if isinstance(told, str) and not math.isnan(time_of(told)) else ""
