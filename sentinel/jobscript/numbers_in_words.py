"""Numbers as options, names and Slurm write them."""

from __future__ import annotations

import re

from sentinel.vocabulary.errors import ConfigError

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4})(?:([.p])(\d+))?([MBTmbt])(\d(?![0-9]))?(?![A-Za-z0-9])(?!-?tok)")
_POWERS = {"m": 1e6, "b": 1e9, "t": 1e12}
_TIME = re.compile(r"(?:(?P<days>\d{1,9})-)?(?P<rest>\d{1,9}(?::\d{1,9}){0,2})")


def whole(text: str) -> int:
    """A whole number above 0, as 216_320. ValueError for anything else."""
    if (value := int(text)) <= 0:
        raise ValueError(text)
    return value


def number(text: str) -> float:
    """A number that is not negative, nan or infinite. ValueError for anything else."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def declared_size(text: str) -> float:
    """Parameters, as 104B, 1.3B, 1B3, 760M or a plain number. ConfigError for anything else."""
    found = _SIZE.fullmatch(text)
    try:
        return _size(found) if found is not None else number(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a number of parameters, as 104B or 1.3e9") from error


def declared_parameters(name: str) -> float | None:
    """The size in a run's name, as in tr8-104B, tr11f-6B3-ml and gpt-1.3B-pile; None where there is none, or several.

    300B-tokens is no size.
    """
    found = {_size(match) for match in _SIZE.finditer(name.replace("_", "-"))}
    return found.pop() if len(found) == 1 else None


def _size(found: re.Match[str]) -> float:
    before, _, behind, letter, after = found.groups()
    return float(f"{before}.{behind or after or 0}") * _POWERS[letter.lower()]


def minutes(text: str) -> float | None:
    """Slurm's time limit: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in found["rest"].split(":")]
    if found["days"] is not None:
        hours, mins, seconds = (*parts, 0, 0)[:3]
        return int(found["days"]) * 1440 + hours * 60 + mins + seconds / 60
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + parts[2] / 60
    return parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)
