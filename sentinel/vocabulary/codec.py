"""Dataclasses as documents and back: one reader for TOML tables, JSON objects and journal lines, by the fields' types
and the `Range` beside them. A class that has `from_json` and `to_json` of its own reads and writes itself."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

from sentinel.vocabulary.errors import ConfigError, SentinelError
from sentinel.vocabulary.numbers import NOT_FINITE, Range, out_of_range, shown

T = TypeVar("T")
Read = Callable[[Any, str], Any]  # (value, key) -> the value as its type has it; the key is for the error
_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """How one kind of document spells its values, and which error names a wrong one."""

    error: type[SentinelError]
    name: str = "the document"  # What an error calls the whole of it
    json: bool = True  # Whether null stands for None, and "nan" and "inf" for the floats
    prints_whole_as_float: bool = False  # Whether a whole number may be printed as 2048.0
    ignores_unknown: bool = False  # Whether unknown keys (of a newer version) are passed over; otherwise an error
    checks_ranges: bool = True  # Whether all ranges are checked; if not, only those that no measurement can leave
    whole: Range | None = None  # Of whole numbers that have no range of their own
    # Further types that are written as a string -> what an error calls them, and (string, key) -> the value.
    scalars: Mapping[type, tuple[str, Callable[[str, str], Any]]] = field(default_factory=dict)

    def called(self, where: str) -> str:
        """The object at this place, in an error; "" is all of it."""
        return (where if self.json else f"[{where}]") if where else self.name


@dataclass(frozen=True, slots=True)
class Spelt:
    """Beside a field's type, in Annotated: how its document is read, where that is not by the type's own fields."""

    read: Callable[[Any], Any]


JSON = Form(error=ConfigError, prints_whole_as_float=True)  # A JSON object of ours, where an unknown key is an error


def read(cls: type[T], data: Any, where: str = "", form: Form = JSON) -> T:
    """The dataclass that the object holds; `where` is what errors call it. The form's error names the key."""
    if not isinstance(data, Mapping):
        raise form.error(f"{where or form.name} should be {_table(form)}, not {shown(data)}")
    kind: Any = cls
    grammar, values = _grammar(kind, form), {}
    for name, value in data.items():
        if (entry := grammar.get(name)) is not None:
            key = f"{where}.{name}" if where else name
            values[name] = entry[0](value, key)
        elif not form.ignores_unknown:
            known = ", ".join(grammar)
            raise form.error(f"{form.called(where)} has no key {name!r}; the right ones are {known}")
    if len(values) < len(grammar):
        for name, (_, required) in grammar.items():
            if required and name not in values:
                raise form.error(f"{form.called(where)} needs the key {name!r}")
    try:
        return cls(**values)
    except ConfigError as error:
        raise form.error(str(error) if form.json else f"{form.called(where)}: {error}") from error


def document(value: Any) -> Any:
    """The value as JSON holds it: a dataclass by its fields, less those that no comparison counts; tuples as lists."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return fields_of(value)
    if isinstance(value, list | tuple):
        return [document(item) for item in value]
    if isinstance(value, Mapping):
        return {key: document(item) for key, item in value.items()}
    return value


def kept(value: Any) -> Any:
    """The value as JSON holds it, so that `read` gives it again: nothing is left out or added for a person."""
    if is_dataclass(value):
        if hasattr(value, "to_json") and hasattr(value, "from_json"):
            return value.to_json()
        return {f.name: kept(getattr(value, f.name)) for f in fields(value) if f.compare}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset | set):
        return sorted(map(kept, value))
    if isinstance(value, list | tuple):
        return [kept(item) for item in value]
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value):
            return {key: kept(item) for key, item in value.items()}
        return [[kept(key), kept(item)] for key, item in value.items()]  # JSON's keys are strings
    return value


def fields_of(value: Any, *, without_none: bool = False) -> dict[str, Any]:
    """A dataclass's fields as JSON holds them, whatever `to_json` of its own it has."""
    found = {f.name: document(getattr(value, f.name)) for f in fields(value) if f.compare}
    return {key: item for key, item in found.items() if item is not None or not without_none}


class Described:
    """A frozen value that is written and read by its own fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The value with these fields. ConfigError names a key that is not one of them, is missing or of no use."""
        return read(cls, data, cls.__name__)


@lru_cache(maxsize=256)
def _grammar(cls: Any, form: Form) -> dict[str, tuple[Read, bool]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        f.name: (_reader(hints[f.name], form), f.default is MISSING and f.default_factory is MISSING)
        for f in fields(cls)
        if f.compare
    }


def _reader(hint: Any, form: Form) -> Read:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:], form)
    if origin in (UnionType, Union):
        arms = [_reader(arm, form) for arm in arguments if arm is not type(None)]
        return _either(arms, form, none=form.json and type(None) in arguments)
    if origin is Literal:
        return _one_of(arguments, form)
    if origin is tuple:
        return _list(arguments, form)
    if origin is frozenset:
        several = _list((arguments[0], ...), form)
        return lambda value, key: frozenset(several(value, key))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[1], form) if arguments[0] is str else _pairs(arguments, form)
    if hint is Any:
        return lambda value, _: value
    if form.json and hasattr(hint, "from_json"):
        return _by_itself(hint, form)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):  # a NamedTuple is a list
        items = _list(tuple(typing.get_type_hints(hint, include_extras=True).values()), form)
        return lambda value, key: hint(*items(value, key))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_named(hint, form)
    if is_dataclass(hint):
        return lambda value, key: read(typing.cast("type[Any]", hint), value, key, form)
    return _ranged(int, form.whole, form) if hint is int and form.whole is not None else _scalar(hint, form)


def _annotated(hint: Any, beside: tuple[Any, ...], form: Form) -> Read:
    if (spelt := next((x for x in beside if isinstance(x, Spelt)), None)) is not None:
        return lambda value, _: spelt.read(value)
    return _ranged(hint, next((x for x in beside if isinstance(x, Range)), None), form)


def _ranged(hint: Any, wanted: Range | None, form: Form) -> Read:
    inner = _reader(hint, _without_whole(form) if wanted is not None else form)
    if wanted is None or not (form.checks_ranges or wanted.physical):
        return inner

    def look(value: Any, key: str) -> Any:
        found = inner(value, key)
        if (problem := out_of_range(wanted, found, key)) is not None:
            raise form.error(problem)
        return found

    return look


@lru_cache(maxsize=16)
def _without_whole(form: Form) -> Form:
    return replace(form, whole=None, prints_whole_as_float=False, checks_ranges=True)


def _either(arms: list[Read], form: Form, *, none: bool) -> Read:
    """The first of the types that takes the value; the error of all of them when none does."""

    def look(value: Any, key: str) -> Any:
        if value is None and none:
            return None
        refused = []
        for arm in arms:
            try:
                return arm(value, key)
            except form.error as error:
                if len(arms) == 1:
                    raise
                refused.append(str(error))
        wanted = " or ".join(text.removeprefix(f"{key} should be ").partition(", not ")[0] for text in refused)
        raise form.error(f"{key} should be {wanted}, not {shown(value)}")

    return look


def _one_of(known: tuple[Any, ...], form: Form) -> Read:
    def look(value: Any, key: str) -> Any:
        if isinstance(value, str) and value in known:
            return value
        raise form.error(f"{key} should be one of {', '.join(map(repr, known))}, not {shown(value)}")

    return look


def _list(arguments: tuple[Any, ...], form: Form) -> Read:
    """A tuple of any length, `tuple[int, ...]`, or of that many items."""
    items = [_reader(item, form) for item in arguments if item is not Ellipsis]
    length = None if Ellipsis in arguments else len(items)

    def look(value: Any, key: str) -> Any:
        if isinstance(value, dict) and is_dataclass(arguments[0]) and not form.json:
            raise form.error(f"{key} can be there several times, so write [[{key}]], not [{key}]")
        if not isinstance(value, list | tuple) or len(value) != (len(value) if length is None else length):
            of = "" if length is None else f" of {length}"
            raise form.error(f"{key} should be a list{of}, not {shown(value)}")
        readers = items * len(value) if length is None else items
        return tuple(one(item, f"{key}[{i}]") for i, (one, item) in enumerate(zip(readers, value, strict=True)))

    return look


def _mapping(hint: Any, form: Form) -> Read:
    item = _reader(hint, form)

    def look(value: Any, key: str) -> Any:
        if not isinstance(value, Mapping):
            raise form.error(f"{key} should be {_table(form)}, not {shown(value)}")
        return {name: item(inner, f"{key}.{name}") for name, inner in value.items()}

    return look


def _pairs(arguments: tuple[Any, ...], form: Form) -> Read:
    """A mapping whose keys are no strings, or not all of them: a list of pairs."""
    pair, named = _list(arguments, form), _mapping(arguments[1], form)

    def look(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return named(value, key)
        if not isinstance(value, list):
            raise form.error(f"{key} should be a list of pairs, not {shown(value)}")
        return dict(pair(each, f"{key}[{i}]") for i, each in enumerate(value))

    return look


def _one_named(hint: type[Enum], form: Form) -> Read:
    """A member of an enumeration, by its value."""

    def look(value: Any, key: str) -> Any:
        try:
            return hint(value)
        except ValueError:
            wanted = ", ".join(repr(one.value) for one in hint)
            raise form.error(f"{key} should be one of {wanted}, not {shown(value)}") from None

    return look


def _by_itself(cls: Any, form: Form) -> Read:
    def look(value: Any, key: str) -> Any:
        try:
            return cls.from_json(value)
        except ConfigError as error:
            raise form.error(f"{key}: {error}") from error

    return look


_BITS = 64  # Of a whole number in a configuration: the largest that any key could mean has fewer


def _scalar(hint: Any, form: Form) -> Read:
    words, further = form.scalars.get(hint, (_WORDS.get(hint, ""), None))

    def look(value: Any, key: str) -> Any:
        if not form.json and isinstance(value, int) and value.bit_length() > _BITS:
            raise form.error(f"{key} should be a number of at most {_BITS} bits, and is far larger")
        if type(value) is hint and further is None:
            if hint is str and "\0" in value and not form.json:
                raise form.error(f"{key} should not hold a NUL byte, as {value[:60]!a} does")
            return value
        if further is not None and isinstance(value, str) and value:
            return further(value, key)
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise form.error(f"{key} is too large for a float") from None
        if hint is float and form.json and isinstance(value, str) and value in NOT_FINITE:
            return NOT_FINITE[value]
        if hint is int and form.prints_whole_as_float and isinstance(value, float) and value.is_integer():
            return int(value)
        raise form.error(f"{key} should be {words}, not {shown(value)}")

    return look


def _table(form: Form) -> str:
    return "an object" if form.json else "a table"
