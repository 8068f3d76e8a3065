"""What launchers and loggers write before a line's own text: colours, ranks, times of day."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone

__all__ = ["rank_of", "time_of", "uncoloured"]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ISO = re.compile(
    r"(?<!\d)(\d{4})[-/]?(\d\d)[-/]?(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,:](\d{1,6})\d{0,3})?(Z|[-+]\d\d:?\d\d(?!\d))?"
)
_AMERICAN = re.compile(r"(?<!\d)(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)()()")
_RANK = re.compile(
    r"\[default(\d+)\]|\[rank[ :=]?(\d+)\]|\brank[ :=]?(\d+)\s*:|\bRank[ :=]?(\d+)\b|slurm_procid (\d+)"
    r"|\[1,(\d+)\]<|\brank=(\d+)\b|\bRANK[ :](\d+)\]"
    r"|^\s*\[?(\d{1,6})\]?\s*:\s|\b(DP=\d+\|(?:[CPT]P=\d+\|?)+)"
)
_ASIDE = 400
"""Characters; what stands further right is not a prefix."""


def uncoloured(line: str) -> str:
    """The line without the escapes that colour it."""
    return _ANSI.sub("", line) if "\x1b" in line else line


def rank_of(head: str) -> str | None:
    """Which process wrote the line, by its prefix; None where it does not say."""
    if not head or head.isspace():
        return None
    found = _RANK.search(head[:_ASIDE])
    return None if found is None else next((g for g in found.groups() if g is not None), None)


def time_of(head: str) -> float:
    """The first time of day in the text as Unix seconds, UTC where it names no zone; nan where there is none."""
    if len(head) < len("2024-04-06 02:59:36"):
        return math.nan
    text = head[:_ASIDE]
    if (found := _ISO.search(text)) is not None:
        year, month, day = found[1], found[2], found[3]
    elif (found := _AMERICAN.search(text)) is not None:
        month, day, year = found[1], found[2], found[3]
    else:
        return math.nan
    micros = int(found[7].ljust(6, "0")) if found[7] else 0
    try:
        clock = (int(found[4]), int(found[5]), int(found[6]), micros)
        return datetime(int(year), int(month), int(day), *clock, tzinfo=_zone(found[8])).timestamp()
    except (ValueError, OverflowError):  # the 31st of February; a log is not believed more than that
        return math.nan


def _zone(text: str | None) -> timezone:
    if not text or text == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))
