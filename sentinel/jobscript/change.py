"""What can be changed in a job script, and where a value may be written so that no shell runs it or splits it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sentinel.jobscript.arguments import Reached
from sentinel.jobscript.syntax import from_bytes, to_bytes
from sentinel.jobscript.trainer import Launch
from sentinel.vocabulary.errors import ConfigError, ScriptRefused

_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOption:
    """The trainer gets this option with this value, whether it had the option before or not."""

    flag: str  # Whole name with its dashes, as `--lr`. Abbreviations are not looked for: Megatron's parser takes none.
    value: str | None = None  # None for a switch, which has no value

    def __post_init__(self) -> None:
        _check(_FLAG, self.flag, "an option")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOption:
    """The trainer no longer gets this option, wherever in its arguments it stood; nothing where it did not."""

    flag: str
    values: int | None = None  # How many go with it; None: all words up to the next option. Refused if it has fewer.

    def __post_init__(self) -> None:
        _check(_FLAG, self.flag, "an option")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVariable:
    """The script's only assignment of this variable gets this value; everything that uses the variable follows."""

    name: str
    value: str  # One plain word: where a variable's value ends up (arithmetic, eval, a JSON) can't be followed

    def __post_init__(self) -> None:
        _check(_NAME, self.name, "a variable")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetJson:
    """The DeepSpeed JSON, which the script writes from a here-document, gets this value at this path."""

    path: tuple[str, ...]  # Keys from the top; objects that are missing on the way are made
    value: Any  # Anything that JSON holds

    def __post_init__(self) -> None:
        if not self.path or not all(key.isascii() for key in self.path):
            raise ConfigError(f"{self.path!r} is not the path of a key of the DeepSpeed JSON")


Change = SetOption | RemoveOption | SetVariable | SetJson


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes of a script that are replaced by others."""

    start: int
    end: int
    new: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with all of the edits made, which do not overlap."""
    source = to_bytes(text)
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        source = source[: edit.start] + to_bytes(edit.new) + source[edit.end :]
    return from_bytes(source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A job script after its changes."""

    text: str
    diff: str  # Unified, from the script as it was; empty where nothing had to change


def _check(pattern: re.Pattern[str], name: str, what: str) -> None:
    if not pattern.fullmatch(name):
        raise ConfigError(f"{name!r} is not the name of {what}")


# Commands that hand their arguments on as they got them. Not `deepspeed`, which has pdsh paste them together.
_KEEPS_WORDS = frozenset(["exec", "nohup", "python", "python3", "srun", "time", "torchrun"])
_VALUE_LIKE_AN_OPTION = re.compile(r"-(?![\d.])")


def refuse_unwritable(change: Change) -> None:
    """ScriptRefused where a text of the change can't stand in any script: no argument and no file can hold it."""
    for text in _texts(change.value if not isinstance(change, RemoveOption) else change.flag):
        if "\0" in text:
            raise ScriptRefused(None, f"the value {text[:60]!a} holds a NUL byte")
        if re.search("[\ud800-\udfff]", text):
            raise ScriptRefused(None, f"the value {text[:60]!a} holds half of a surrogate pair, which is no character")


def _texts(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            stack += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            stack += one


def is_plain(value: str) -> bool:
    """Whether the value is the same word to every shell, however often it is read: nothing in it means anything."""
    return bool(value) and shlex.quote(value) == value


def why_not_written(value: str, at: Reached, launches: tuple[Launch, ...]) -> str | None:
    """Why a value can't be written where this word stands; None where it can, quoted if it has to be."""
    if _VALUE_LIKE_AN_OPTION.match(value):
        return f"the value {value!r} looks like an option"
    if is_plain(value):
        return None
    if any(ord(character) < ord(" ") for character in value):
        return f"the value {value!r} holds a control character"
    steps = [step for launch in launches for reached in launch.command.words for step in reached.path]
    names = {step.variable for step in at.path if step.variable}
    in_parts = any(w.variable in names and w.splice != "quoted elements" for step in steps for w in step.words)
    starter = next((launch.command.name for launch in launches if launch.command.name not in _KEEPS_WORDS), None)
    why = None
    if at.reparsed:
        why = ", and a second shell reads this place as code"
    elif at.written.kind not in ("command", "array"):
        why = ", which do not hold in a text that is split into words"
    elif in_parts:
        why = ", and the array is used without them"
    elif starter is not None:
        why = f", and {starter or 'the command'!r} may not hand them on"
    return why and f"the value {value!r} needs quotes{why}"
