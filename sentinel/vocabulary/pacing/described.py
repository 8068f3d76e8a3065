"""Schedules as JSON objects of their own fields: how they are reported, decided and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Self, TypeVar

from sentinel.vocabulary.errors import ConfigError

__all__ = ["Described", "fields_from", "fields_of"]

T = TypeVar("T")


class Described:
    """A frozen value that is written and read by its own fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The value with these fields. ConfigError names a key that is not one of them, is missing or of no use."""
        return fields_from(cls, data)


def fields_of(value: Any) -> dict[str, Any]:
    """A dataclass's fields as JSON holds them: a tuple is a list there. What no comparison counts stays out."""
    found = {f.name: getattr(value, f.name) for f in fields(value) if f.compare}
    return {key: list(item) if isinstance(item, tuple) else item for key, item in found.items()}


def fields_from(cls: type[T], data: Any) -> T:
    """The dataclass that fields_of gave. ConfigError names the class and the key."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{cls.__name__} is an object, not {data!r}")
    known = {f.name: f for f in fields(cls) if f.compare}  # type: ignore[arg-type]
    if unknown := data.keys() - known:
        raise ConfigError(f"{cls.__name__} has no {min(unknown)!r}; it has {', '.join(sorted(known))}")
    values = {}
    for name, f in known.items():
        if name in data:
            values[name] = _read(str(f.type), data[name], f"{cls.__name__} {name}")
        elif f.default is MISSING:
            raise ConfigError(f"{cls.__name__} needs {name}")
    return cls(**values)


def _read(annotation: str, value: Any, key: str) -> Any:
    """The value as the annotation has it: they are strings, as `from __future__ import annotations` leaves them."""
    wanted = annotation.removesuffix(" | None")
    if value is None and wanted != annotation:
        return None
    if wanted == "tuple[int, ...]" and isinstance(value, list | tuple):
        return tuple(_read("int", item, key) for item in value)
    if wanted == "str" and isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if wanted == "float":
            return value
        if wanted == "int" and float(value).is_integer():
            return int(value)  # a whole number may have been printed as 2048.0
    raise ConfigError(f"{key} should be {_WORDS[wanted]}{' or null' * (wanted != annotation)}, not {value!r}")


_WORDS = {"int": "a whole number", "float": "a number", "str": "a string", "tuple[int, ...]": "a list of whole numbers"}
