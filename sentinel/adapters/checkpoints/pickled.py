"""What a pickle holds, without executing it: the opcodes are read (`pickletools.genops`), never performed.

A checkpoint is untrusted input, and unpickling runs whatever its author wanted to run. Needed are the storages of a
torch file and their types (its persistent ids), and a few plain keys and values of its dictionaries. So the stack
machine is followed with names in the place of objects: what is not a string, a whole number, None, a global's name or a
short tuple of these is unknown, and nothing is ever imported or called.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LARGEST_BYTES = 64 << 20  # a rank's own pickle has some hundred kilobytes; what is larger than this is not followed
_MOST_OPCODES = 20_000_000  # half a minute of reading
_LONGEST_TUPLE = 8
_UNKNOWN = object()  # anything that is not followed
_MARK = object()  # where a tuple's, a list's or a dictionary's items begin
_PLAIN = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING"}
    | {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "NONE"}
)
_TUPLES = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})


class PickleError(Exception):
    """A pickle that breaks off, or is not one."""


@dataclass(frozen=True, slots=True)
class Global:
    """The name of something importable, which is not imported."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Persistent:
    """A persistent id: torch's ("storage", type, key, location, elements)."""

    id: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and a value that are put into a dictionary."""

    key: Any
    value: Any
    top: bool  # the dictionary is the pickled object itself


def read_pickle(data: bytes) -> Iterator[Persistent | Entry]:
    """Persistent ids and dictionary entries, in the order in which they are made. PickleError where it is broken."""
    stack: list[Any] = []  # pickle's stack, with names for objects
    memo: dict[int, Any] = {}
    operations: Iterator[tuple[Any, Any, Any]] = pickletools.genops(data)
    try:
        for count, (opcode, argument, _) in enumerate(operations):
            if count > _MOST_OPCODES:
                raise PickleError("it has more opcodes than a checkpoint's pickle has")
            name = opcode.name
            if name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[int(argument)] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[int(argument)])
            elif name == "MARK":
                stack.append(_MARK)
            elif name in _PLAIN:
                stack.append(argument)
            elif name == "GLOBAL":
                stack.append(Global(*argument.split(" ", 1)) if " " in argument else _UNKNOWN)
            else:
                yield from _reduced(stack, opcode)
    except (ValueError, IndexError, KeyError, OverflowError, EOFError) as error:
        raise PickleError(str(error)) from error


def _reduced(stack: list[Any], opcode: Any) -> Iterator[Persistent | Entry]:
    """The opcodes that take something from the stack, as their own description says."""
    before, name, items = opcode.stack_before, opcode.name, list[Any]()
    if pickletools.markobject in before:
        while (item := stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        before = before[: before.index(pickletools.markobject)]
    taken = [stack.pop() for _ in before][::-1]
    if name in ("SETITEM", "SETITEMS"):
        pairs = taken[1:] if name == "SETITEM" else items
        top = not stack
        for key, value in zip(pairs[::2], pairs[1::2], strict=False):
            yield Entry(key, value, top)
    elif name == "BINPERSID":
        yield Persistent(taken[0])
    made: Any = _UNKNOWN
    if name in _TUPLES:
        made = tuple(items or taken) if len(items or taken) <= _LONGEST_TUPLE else _UNKNOWN
    elif name == "STACK_GLOBAL" and all(isinstance(part, str) for part in taken):
        made = Global(*taken)
    stack.extend([made] * len(opcode.stack_after))
