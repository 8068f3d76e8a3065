"""Reads the keys of DeepSpeed's JSON; a key that is not one of its own is an error that names it and the right ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sentinel.vocabulary.errors import ConfigError

Block = Mapping[str, Any]


def block(parent: Block, key: str, known: Collection[str], *, where: str = "") -> Block:
    """The object under this key, which has none but the known keys; an empty one where there is none."""
    value, name = parent.get(key, {}), f"{where}.{key}" if where else key
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} should be an object, not {value!r}")
    if unknown := value.keys() - set(known):
        raise ConfigError(f"{name} has no key {min(unknown)!r}; the right ones are {', '.join(sorted(known))}")
    return value


def switched_on(data: Block, where: str) -> bool:
    """Its `enabled`; off where it is left out, as in DeepSpeed."""
    value = data.get("enabled", False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.enabled should be true or false, not {value!r}")
    return value


def whole(data: Block, key: str, where: str) -> int:
    """The whole number under this key, which has to be there."""
    value = data.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        said = f"not {value!r}" if key in data else "and is missing"
        raise ConfigError(f"{where}.{key} should be a whole number, {said}")
    return value


def wholes(data: Block, key: str, where: str) -> tuple[int, ...]:
    """The list of whole numbers under this key, which has to be there."""
    value = data.get(key)
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ConfigError(f"{where}.{key} should be a list of whole numbers, not {value!r}")
    return tuple(value)


def text(data: Block, key: str, where: str, known: Collection[str] = ()) -> str:
    """The string under this key, one of the known ones where there are any."""
    value = data.get(key)
    if not isinstance(value, str) or not value or (known and value not in known):
        wanted = f"one of {', '.join(known)}" if known else "a string"
        raise ConfigError(f"{where}.{key} should be {wanted}, not {value!r}")
    return value
