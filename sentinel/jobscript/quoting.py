"""How a value may be written where, so that no shell ever runs it or makes two words of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from sentinel.jobscript.arguments import Reached
from sentinel.jobscript.change import Change, RemoveOption
from sentinel.jobscript.trainer import Launch
from sentinel.vocabulary.errors import ScriptRefused

_SHOWN = 60

_KEEPS_WORDS = frozenset(["exec", "nohup", "python", "python3", "srun", "time", "torchrun"])
"""Commands that hand their arguments on as they got them. Not `deepspeed`, which has pdsh paste them together."""

_VALUE_LIKE_AN_OPTION = re.compile(r"-(?![\d.])")


def refuse_unwritable(change: Change) -> None:
    """ScriptRefused where a text of the change can't stand in any script: no argument and no file can hold it."""
    for text in _texts(change.value if not isinstance(change, RemoveOption) else change.flag):
        if "\0" in text:
            raise ScriptRefused(None, f"the value {text[:_SHOWN]!a} holds a NUL byte")
        if not _is_text(text):
            raise ScriptRefused(
                None, f"the value {text[:_SHOWN]!a} holds half of a surrogate pair, which is no character"
            )


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


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_plain(value: str) -> bool:
    """Whether the value is the same word to every shell, however often it is read: nothing in it means anything."""
    return bool(value) and shlex.quote(value) == value


def written(value: str) -> str:
    return shlex.quote(value)


def why_not_written(value: str, at: Reached, launches: tuple[Launch, ...]) -> str | None:
    """Why a value can't be written where this word stands; None where it can, quoted if it has to be."""
    if _VALUE_LIKE_AN_OPTION.match(value):
        return f"the value {value!r} looks like an option"
    if is_plain(value):
        return None
    if any(ord(character) < ord(" ") for character in value):
        return f"the value {value!r} holds a control character"
    if at.reparsed:
        return f"the value {value!r} needs quotes, and a second shell reads this place as code"
    if at.written.kind not in ("command", "array"):
        return f"the value {value!r} needs quotes, which do not hold in a text that is split into words"
    if at.written.kind == "array" and not _spliced_whole(at, launches):
        return f"the value {value!r} needs quotes, and the array is used without them"
    starter = next((launch.command.name for launch in launches if launch.command.name not in _KEEPS_WORDS), None)
    if starter is not None:
        return f"the value {value!r} needs quotes, and {starter or 'the command'!r} may not hand them on"
    return None


def _spliced_whole(at: Reached, launches: tuple[Launch, ...]) -> bool:
    names = {step.variable for step in at.path if step.variable}
    users = [
        word for launch in launches for reached in launch.command.words for step in reached.path for word in step.words
    ]
    return all(word.splice == "quoted elements" for word in users if word.variable in names)
