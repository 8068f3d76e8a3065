"""build(cls, data) -> a frozen dataclass from a TOML table, checked by its fields' types and ranges."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_path_text
from sentinel.vocabulary.ranges import out_of_range, ranges_of

__all__ = ["build"]

T = TypeVar("T")

_BITS = 64
"""Of a whole number: the largest that any key could mean has fewer."""


def build(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """The dataclass of a table; `where` is what errors call it, "" the whole file. ConfigError lists the right keys."""
    hints, ranges = typing.get_type_hints(cls), ranges_of(cls)
    table = f"[{where}]" if where else "the file"
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise ConfigError(f"{table} has no key {key!r}; the right ones are {', '.join(known)}")
    values = {}
    for name, f in known.items():
        if name in data:
            key = f"{where}.{name}" if where else name
            values[name] = _value(hints[name], data[name], key)
            if name in ranges and (problem := out_of_range(ranges[name], values[name], key)) is not None:
                raise ConfigError(problem)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{table} needs the key {name!r}")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{table}: {error}") from error


def _value(hint: Any, value: Any, key: str) -> Any:
    origin = get_origin(hint)
    if origin in (UnionType, Union):  # `X | None`: TOML has no null, so it is X
        return _either(tuple(arm for arm in get_args(hint) if arm is not type(None)), value, key)
    if origin is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{key} should be one of {', '.join(map(repr, get_args(hint)))}, not {value!r}")
        return value
    if origin is tuple:
        (item_hint, *_) = get_args(hint)
        if isinstance(value, dict) and hasattr(item_hint, "__dataclass_fields__"):
            raise ConfigError(f"{key} can be there several times, so write [[{key}]], not [{key}]")
        if not isinstance(value, list):
            raise ConfigError(f"{key} should be a list, not {value!r}")
        return tuple(_value(item_hint, item, f"{key}[{i}]") for i, item in enumerate(value))
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        if not isinstance(value, dict):
            raise ConfigError(f"{key} should be a table, not {value!r}")
        return build(hint, value, key)
    return _scalar(hint, value, key)


def _either(arms: tuple[Any, ...], value: Any, key: str) -> Any:
    """The value as the first of the types that takes it; the error of all of them when none does."""
    refused = []
    for arm in arms:
        try:
            return _value(arm, value, key)
        except ConfigError as error:
            refused.append(str(error))
    wanted = " or ".join(text.removeprefix(f"{key} should be ").partition(", not ")[0] for text in refused)
    raise ConfigError(refused[0] if len(refused) == 1 else f"{key} should be {wanted}, not {value!r}")


def _scalar(hint: type, value: Any, key: str) -> Any:
    if hint is Path and isinstance(value, str) and value:
        return Path(checked_path_text(value, key))
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ConfigError(f"{key} should be a number of at most {_BITS} bits, and is far larger")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{key} should not hold a NUL byte, as {value[:60]!a} does")
    if hint in (int, str, bool) and type(value) is hint:
        return value
    wanted = {Path: "a path", float: "a number", int: "a whole number", str: "a string", bool: "true or false"}[hint]
    raise ConfigError(f"{key} should be {wanted}, not {value!r}")
