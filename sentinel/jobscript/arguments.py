"""How arguments travel through a script: from the lists in which they are written to the commands that get them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from tree_sitter import Node

from sentinel.jobscript.syntax import Script, climb, code_of, conditions, hands_to_a_shell, source_of
from sentinel.jobscript.words import Word, command_words, word, words_of_string

# When something runs, in bytes of the script: where its function is first called, then where it stands itself.
Moment = tuple[int, int]
Kind = Literal["command", "array", "double quotes", "single quotes", "bare"]
_KINDS: Mapping[str, Kind] = {"array": "array", "string": "double quotes", "raw_string": "single quotes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentList:
    """A place where arguments are written: a command, an array, a quoted text."""

    kind: Kind
    start: int
    end: int
    words: tuple[Word, ...]
    conditions: tuple[int, ...]  # What has to happen before it takes effect: see `syntax.conditions`
    moment: Moment
    variable: str = ""  # The variable that holds it; empty for a command's own words


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """`NAME=value` or `NAME+=value`, also after `export`, `readonly`, `local` and `declare`."""

    name: str
    start: int
    value: Node | None  # None where the value is empty
    appends: bool  # Adds to what the variable holds: `+=`, or `X="$X …"`
    integer: bool  # `declare -i`: the shell calculates what it is given
    one_command: bool  # `NAME=value command`: holds for that command alone
    written: ArgumentList


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A word that a command gets, and how it got there."""

    word: Word
    path: tuple[ArgumentList, ...]  # The lists through which it came: the command's own first, its own last
    uses: tuple[Word, ...]  # The uses of variables through which it came, as `$GPT_ARGS`: one for each step of the path
    reparsed: bool  # Whether a shell reads it a second time, as code: `eval`, or a double-quoted `bash -c`

    @property
    def written(self) -> ArgumentList:
        return self.path[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCommand:
    """A command with all that it gets."""

    name: str  # Empty where it is not written out
    node: Node
    words: tuple[Reached, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptReading:
    """What was understood of a script."""

    script: Script
    commands: tuple[ScriptCommand, ...]
    assignments: Mapping[str, tuple[Assignment, ...]]
    functions: frozenset[str]

    def set_before(self, name: str, moment: Moment) -> tuple[Assignment, ...]:
        """The assignments that a use of the variable at this moment can see."""
        return tuple(a for a in self.assignments.get(name, ()) if not a.one_command and a.written.moment < moment)


def read(script: Script) -> ScriptReading:
    """The commands of a script, each with the words that reach it."""
    calls = _first_calls(script)
    assignments: dict[str, tuple[Assignment, ...]] = {}
    for node in script.nodes():
        if node.type == "variable_assignment" and (made := _assignment(script, node, calls)) is not None:
            assignments[made.name] = (*assignments.get(made.name, ()), made)
    reading = ScriptReading(script=script, commands=(), assignments=assignments, functions=frozenset(calls))
    commands = tuple(_command(reading, node, calls) for node in script.nodes() if node.type == "command")
    return replace(reading, commands=commands)


def _first_calls(script: Script) -> dict[str, int]:
    """Where each function is first called; the script's end for one that never is."""
    calls = {name: len(script.source) for node in script.nodes() if (name := _function(node))}
    for node in script.nodes():
        called = code_of(node)
        if node.type == "command_name" and called in calls:
            calls[called] = min(calls[called], node.start_byte)
    return calls


def _function(node: Node) -> str:
    """The name of the function that the node defines; "" for any other node."""
    name = node.child_by_field_name("name") if node.type == "function_definition" else None
    return "" if name is None else code_of(name)


def _written(
    script: Script, node: Node, kind: Kind, words: tuple[Word, ...], calls: Mapping[str, int], variable: str = ""
) -> ArgumentList:
    called = max([node.start_byte, *(calls[name] for _, above in climb(script, node) if (name := _function(above)))])
    return ArgumentList(
        kind=kind,
        start=node.start_byte,
        end=node.end_byte,
        words=words,
        conditions=conditions(script, node),
        moment=(called, node.start_byte),
        variable=variable,
    )


def _assignment(script: Script, node: Node, calls: Mapping[str, int]) -> Assignment | None:
    name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    parent = node.parent
    if name_node is None or parent is None or name_node.type != "variable_name":
        return None
    name = code_of(name_node)
    kind = "bare" if value is None else _KINDS.get(value.type, "bare")
    words: tuple[Word, ...] = () if value is None else (word(script, value),)
    if value is not None and kind != "bare":
        elements = (word(script, child) for child in value.named_children if child.type != "comment")
        words = tuple(elements) if kind == "array" else words_of_string(script, value)
    declared = parent.type == "declaration_command"
    return Assignment(
        name=name,
        start=node.start_byte,
        value=value,
        appends=any(child.type == "+=" for child in node.children) or any(w.variable == name for w in words),
        integer=declared and any(re.fullmatch(rb"-\w*i\w*", source_of(child)) for child in parent.children),
        one_command=parent.type == "command",
        written=_written(script, node, kind, words, calls, name),
    )


def _command(reading: ScriptReading, node: Node, calls: Mapping[str, int]) -> ScriptCommand:
    words = command_words(reading.script, node)
    own = _written(reading.script, node, "command", words, calls)
    reached = chain.from_iterable(_argument(reading, node, own, index) for index in range(len(words)))
    return ScriptCommand(name=(words[0].text or "") if words else "", node=node, words=tuple(reached))


def _argument(reading: ScriptReading, node: Node, own: ArgumentList, index: int) -> Iterator[Reached]:
    """What a command gets from one of the words that it is written with."""
    words, at = own.words, own.words[index]
    inner = [child for child in node.children_by_field_name("argument") if child.end_byte == at.end]
    kind = _KINDS.get(inner[0].type, "bare") if inner else "bare"
    for_a_shell = index > 1 and hands_to_a_shell(words[index - 2].text or "", words[index - 1].text or "")
    evaluated = words[0].text == "eval"
    if for_a_shell and kind == "single quotes":
        return  # a script of its own, with its own commands
    code, inside = own, own.words[index : index + 1]
    if kind in ("double quotes", "single quotes") and (for_a_shell or evaluated):
        inside = words_of_string(reading.script, inner[0])
        code = replace(own, kind=kind, start=at.start, end=at.end, words=inside)
    for each in inside:
        reached = Reached(word=each, path=(code,), uses=(), reparsed=evaluated or code is not own)
        yield from _reach(reading, reached, own.moment)


def _reach(reading: ScriptReading, at: Reached, moment: Moment) -> Iterator[Reached]:
    """The words that stand for this one once variables of the script are spliced in."""
    if at.word.variable and any(above.variable == at.word.variable for above in at.path):
        return  # `X="$X …"` adds to itself
    lists = at.word.splice != "words"
    taken = [a for a in reading.set_before(at.word.variable, moment) if (a.written.kind == "array") == lists]
    if not taken:
        yield at
    for assignment in taken:
        step = replace(at, path=(*at.path, assignment.written), uses=(*at.uses, at.word))
        for inside in assignment.written.words:
            yield from _reach(reading, replace(step, word=inside), assignment.written.moment)
