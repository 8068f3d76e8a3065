"""Reads the keys of overrides.json one by one; what is wrong is an OverridesError that names its key."""

from __future__ import annotations

from typing import Any

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.numbers import to_number

__all__ = ["number", "only", "required_whole", "string", "table", "whole"]


def only(data: dict[str, Any], where: str, known: set[str]) -> dict[str, Any]:
    """The object, where it has no other keys."""
    if unknown := data.keys() - known:
        # An override that is silently ignored is the costliest kind: refuse it.
        raise OverridesError(f"{where} has an unknown key {min(unknown)!r}; known are {', '.join(sorted(known))}")
    return data


def table(data: dict[str, Any], key: str) -> dict[str, Any]:
    """The object under this key; an empty one where there is none."""
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise OverridesError(f"{key} should be an object, not {value!r}")
    return value


def string(data: dict[str, Any], key: str) -> str:
    """The string under this key, which has to be there."""
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise OverridesError(f"{key} should be a non-empty string, not {value!r}")
    return value


def whole(data: dict[str, Any], key: str) -> int | None:
    """The whole number under this key; None for null, and where there is none."""
    value = data.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise OverridesError(f"{key} should be a whole number or null, not {type(value).__name__}")
    if value is not None and not -(2**63) <= value < 2**63:
        raise OverridesError(f"{key} should be a whole number of 64 bits")
    return value


def number(data: dict[str, Any], key: str, least: float, below: float) -> float | None:
    """The number under this key, within its limits; None for null, and where there is none."""
    value = to_number(data.get(key), key)
    if value is not None and not least <= value < below:
        raise OverridesError(f"{key} should be at least {least:g} and below {below:g}, not {value:g}")
    return value


def required_whole(data: dict[str, Any], key: str) -> int:
    """The whole number under this key, which has to be there."""
    value = whole(data, key)
    if value is None:
        raise OverridesError(f"{key} is missing")
    return value
