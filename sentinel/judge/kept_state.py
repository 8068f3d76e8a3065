"""The judge's state as plain data and back: a reader that goes on from it judges as one that has read everything.

Every object that is defined in the judge's modules, or is a record, is written by its attributes, whatever they are
called: a new attribute of a detector is kept without a word here. What two of them share they share again. Nothing is
called when it is read back, no class but those is made, and what is not of such a kind is refused: the data may come
from a file.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from sentinel.judge import history, readings, reference, series, thresholds, unhealthy_spans
from sentinel.judge.detectors import DETECTORS
from sentinel.vocabulary import overrides, sample

_PLAIN = frozenset({type(None), bool, int, float, str})
# What a list in the data begins with. Values that are no list are as they are.
_AGAIN, _LIST, _TUPLE, _DICT, _DEQUE, _SET, _OBJECT, _ENUM, _NAMED_TUPLE, _GIVEN = range(10)
# Where those classes are defined: in these modules, those of the detectors, and what they import of the judge.
_MODULES = (history, readings, reference, series, thresholds, unhealthy_spans, overrides, sample)


class StateError(ValueError):
    """The state holds what can't be kept, or the data is of no state."""


def to_data(state: Any, given: Mapping[str, object]) -> list[Any]:
    """Lists, numbers, texts and None. `given` is what the reader has, by name: it is not written. StateError where
    there is anything else in the state."""
    writer = _Writer(given)
    return [writer.kinds, writer.write(state)]


def from_data(data: Any, given: Mapping[str, object]) -> Any:
    """The state that `to_data` took. StateError where the data is of none."""
    try:
        kinds, root = data
        return _Reader([(_classes()[name], attributes) for name, attributes in kinds], given).read(root)
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise StateError(f"the data is no state of the judge: {error}") from error


@lru_cache(maxsize=1)
def _classes() -> Mapping[str, type[Any]]:
    named = {module.__name__ for module in _MODULES} | {detector.__module__ for detector in DETECTORS}
    imported = {one.__module__ for name in named for one in vars(sys.modules[name]).values() if isinstance(one, type)}
    modules = named | {name for name in imported if name.startswith("sentinel.judge.")}
    return {
        f"{name}.{one.__qualname__}": one
        for name in modules
        for one in vars(sys.modules[name]).values()
        if isinstance(one, type) and one.__module__ == name
    }


class _Writer:
    def __init__(self, given: Mapping[str, object]) -> None:
        self.kinds: list[tuple[str, list[str]]] = []  # (class, attributes) of the objects, by their numbers
        self._numbers: dict[tuple[type[Any], tuple[str, ...]], int] = {}
        self._given = {id(one): name for name, one in given.items() if one != ()}  # there is one empty tuple in all
        self._seen: dict[int, int] = {}  # Of what can be shared, by the order in which it came

    def write(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if (name := self._given.get(id(value))) is not None:
            return [_GIVEN, name]
        if kind is tuple:
            return [_TUPLE, *self._all(value)]
        if isinstance(value, Enum):
            return [_ENUM, _named(kind), value.value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return [_NAMED_TUPLE, _named(kind), *self._all(value)]
        if (at := self._seen.get(id(value))) is not None:
            return [_AGAIN, at]
        self._seen[id(value)] = len(self._seen)
        return self._write_shared(value, kind)

    def _write_shared(self, value: Any, kind: type[Any]) -> list[Any]:
        if kind is list:
            return [_LIST, *self._all(value)]
        if kind is dict:
            return [_DICT, *(self.write(one) for item in value.items() for one in item)]
        if kind is deque:
            return [_DEQUE, value.maxlen, *self._all(value)]
        if kind is set:
            return [_SET, *self._all(value)]
        attributes = tuple(_attributes(value))
        number = self._numbers.get((kind, attributes))
        if number is None:
            number = self._numbers[kind, attributes] = len(self.kinds)
            self.kinds.append((_named(kind), list(attributes)))
        return [_OBJECT, number, *self._all([getattr(value, name) for name in attributes])]

    def _all(self, values: Sequence[Any]) -> Iterator[Any]:
        return (one if type(one) in _PLAIN else self.write(one) for one in values)


def _named(kind: type[Any]) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _classes().get(name) is not kind:
        raise StateError(f"a {name} is nothing that a judge keeps")
    return name


def _attributes(value: Any) -> Iterator[str]:
    for kind in type(value).__mro__:
        yield from (name for name in vars(kind).get("__slots__", ()) if hasattr(value, name))
    yield from getattr(value, "__dict__", ())


class _Reader:
    def __init__(self, kinds: list[tuple[type[Any], list[str]]], given: Mapping[str, object]) -> None:
        self._kinds = kinds
        self._given = given
        self._seen: list[Any] = []
        self._readers: dict[int, Callable[[list[Any]], Any]] = {
            _AGAIN: lambda data: self._seen[data[1]],
            _LIST: self._read_list,
            _TUPLE: lambda data: tuple(self._all(data[1:])),
            _DICT: self._read_dict,
            _DEQUE: self._read_deque,
            _SET: self._read_set,
            _OBJECT: self._read_object,
            _ENUM: lambda data: _kind(data, Enum)(data[2]),
            _NAMED_TUPLE: lambda data: _kind(data, tuple)(*self._all(data[2:])),
            _GIVEN: lambda data: self._given[data[1]],
        }

    def read(self, data: Any) -> Any:
        if type(data) in _PLAIN:
            return data
        if type(data) is not list:
            raise StateError(f"a {type(data).__name__} is in the data")
        return self._readers[data[0]](data)

    def _all(self, values: Sequence[Any]) -> Iterator[Any]:
        return (one if type(one) in _PLAIN else self.read(one) for one in values)

    # What can be shared is known before what it holds is read: that may refer to it.

    def _read_list(self, data: list[Any]) -> list[Any]:
        found: list[Any] = []
        self._seen.append(found)
        found.extend(self._all(data[1:]))
        return found

    def _read_dict(self, data: list[Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        self._seen.append(found)
        for at in range(1, len(data), 2):
            key = self.read(data[at])
            found[key] = self.read(data[at + 1])
        return found

    def _read_deque(self, data: list[Any]) -> deque[Any]:
        found: deque[Any] = deque(maxlen=data[1])
        self._seen.append(found)
        found.extend(self._all(data[2:]))
        return found

    def _read_set(self, data: list[Any]) -> set[Any]:
        found: set[Any] = set()
        self._seen.append(found)
        found.update(self._all(data[1:]))
        return found

    def _read_object(self, data: list[Any]) -> Any:
        kind, attributes = self._kinds[data[1]]
        found = object.__new__(kind)
        self._seen.append(found)
        for name, value in zip(attributes, data[2:], strict=True):
            object.__setattr__(found, name, value if type(value) in _PLAIN else self.read(value))
        return found


def _kind(data: list[Any], wanted: type[Any]) -> Any:
    kind = _classes()[data[1]]
    if not issubclass(kind, wanted):
        raise StateError(f"{data[1]} is no {wanted.__name__}")
    return kind
