"""How arguments travel through a script: from the lists in which they are written to the commands that get them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from tree_sitter import Node

from sentinel.jobscript.syntax import ARGUMENTS_OF_A_SHELL, Script, climb, code_of, conditions, source_of
from sentinel.jobscript.words import Word, command_words, word, words_of_array, words_of_string

Moment = tuple[int, int]
"""When something runs, in bytes of the script: where its function is first called, then where it stands itself."""

Kind = Literal["command", "array", "double quotes", "single quotes", "bare"]


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

    @property
    def moment(self) -> Moment:
        return self.written.moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A word that a command gets, and how it got there."""

    word: Word
    path: tuple[ArgumentList, ...]
    """The lists through which it came, the command's own first, the one in which it is written last."""

    uses: tuple[Word, ...]  # The uses of variables through which it came, as `$GPT_ARGS`: one for each step of the path
    reparsed: bool  # Whether a shell reads it a second time, as code: `eval`, or a double-quoted `bash -c`

    @property
    def written(self) -> ArgumentList:
        return self.path[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command with all that it gets."""

    name: str  # Empty where it is not written out
    node: Node
    words: tuple[Reached, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was understood of a script."""

    script: Script
    commands: tuple[Command, ...]
    assignments: Mapping[str, tuple[Assignment, ...]]
    functions: frozenset[str]

    def set_before(self, name: str, moment: Moment) -> tuple[Assignment, ...]:
        """The assignments that a use of the variable at this moment can see."""
        return tuple(a for a in self.assignments.get(name, ()) if not a.one_command and a.moment < moment)


def read(script: Script) -> Reading:
    """The commands of a script, each with the words that reach it."""
    calls = _first_calls(script)
    assignments: dict[str, tuple[Assignment, ...]] = {}
    for node in script.nodes():
        if node.type == "variable_assignment" and (made := _assignment(script, node, calls)) is not None:
            assignments[made.name] = (*assignments.get(made.name, ()), made)
    reading = Reading(script=script, commands=(), assignments=assignments, functions=frozenset(calls))
    commands = tuple(
        _command(reading, node, _moment(script, node, calls)) for node in script.nodes() if node.type == "command"
    )
    return Reading(script=script, commands=commands, assignments=assignments, functions=frozenset(calls))


def _first_calls(script: Script) -> dict[str, int]:
    """Where each function is first called; the script's end for one that never is."""
    names = {
        code_of(name)
        for node in script.nodes()
        if node.type == "function_definition" and (name := node.child_by_field_name("name")) is not None
    }
    calls = dict.fromkeys(names, len(script.source))
    for node in script.nodes():
        called = code_of(node)
        if node.type == "command_name" and called in calls:
            calls[called] = min(calls[called], node.start_byte)
    return calls


def _moment(script: Script, node: Node, calls: Mapping[str, int]) -> Moment:
    moment = node.start_byte
    for _, above in climb(script, node):
        name = above.child_by_field_name("name") if above.type == "function_definition" else None
        if name is not None:
            moment = max(moment, calls[code_of(name)])
    return moment, node.start_byte


def _assignment(script: Script, node: Node, calls: Mapping[str, int]) -> Assignment | None:
    name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    parent = node.parent
    if name_node is None or parent is None or name_node.type != "variable_name":
        return None
    name = code_of(name_node)
    written = ArgumentList(
        kind=_kind(value),
        start=node.start_byte,
        end=node.end_byte,
        words=_words(script, value),
        conditions=conditions(script, node),
        moment=_moment(script, node, calls),
        variable=name,
    )
    declared = parent.type == "declaration_command"
    return Assignment(
        name=name,
        start=node.start_byte,
        value=value,
        appends=any(child.type == "+=" for child in node.children) or any(w.variable == name for w in written.words),
        integer=declared and any(re.fullmatch(rb"-\w*i\w*", source_of(child)) for child in parent.children),
        one_command=parent.type == "command",
        written=written,
    )


def _kind(value: Node | None) -> Kind:
    kinds: dict[str, Kind] = {"array": "array", "string": "double quotes", "raw_string": "single quotes"}
    return "bare" if value is None else kinds.get(value.type, "bare")


def _words(script: Script, value: Node | None) -> tuple[Word, ...]:
    if value is None:
        return ()
    if value.type == "array":
        return words_of_array(script, value)
    return words_of_string(script, value) if value.type in ("string", "raw_string") else (word(script, value),)


def _command(reading: Reading, node: Node, moment: Moment) -> Command:
    script = reading.script
    words = command_words(script, node)
    own = ArgumentList(
        kind="command",
        start=node.start_byte,
        end=node.end_byte,
        words=words,
        conditions=conditions(script, node),
        moment=moment,
    )
    name = (words[0].text or "") if words else ""
    reached: tuple[Reached, ...] = tuple(
        chain.from_iterable(_argument(reading, node, own, index, moment) for index in range(len(words)))
    )
    return Command(name=name, node=node, words=reached)


def _argument(reading: Reading, node: Node, own: ArgumentList, index: int, moment: Moment) -> Iterator[Reached]:
    """What a command gets from one of the words that it is written with."""
    words, at = own.words, own.words[index]
    shell, minus_c = ARGUMENTS_OF_A_SHELL
    inner = [child for child in node.children_by_field_name("argument") if child.end_byte == at.end]
    quoted = inner[0] if inner and inner[0].type in ("string", "raw_string") else None
    for_a_shell = (
        index > 1
        and bool(shell.fullmatch(words[index - 2].text or ""))
        and bool(minus_c.fullmatch(words[index - 1].text or ""))
    )
    evaluated = words[0].text == "eval"
    if for_a_shell and quoted is not None and quoted.type == "raw_string":
        return  # a script of its own, with its own commands
    if quoted is not None and (for_a_shell or evaluated):
        code = ArgumentList(
            kind="double quotes" if quoted.type == "string" else "single quotes",
            start=at.start,
            end=at.end,
            words=words_of_string(reading.script, quoted),
            conditions=own.conditions,
            moment=own.moment,
        )
        for inside in code.words:
            yield from _reach(reading, Reached(word=inside, path=(code,), uses=(), reparsed=True), moment)
        return
    yield from _reach(reading, Reached(word=at, path=(own,), uses=(), reparsed=evaluated), moment)


def _reach(reading: Reading, at: Reached, moment: Moment) -> Iterator[Reached]:
    """The words that stand for this one once variables of the script are spliced in."""
    if at.word.variable and any(above.variable == at.word.variable for above in at.path):
        return  # `X="$X …"` adds to itself
    taken = [a for a in reading.set_before(at.word.variable, moment) if _splices(at.word, a)]
    if not taken:
        yield at
    for assignment in taken:
        path, uses = (*at.path, assignment.written), (*at.uses, at.word)
        for inside in assignment.written.words:
            reached = Reached(word=inside, path=path, uses=uses, reparsed=at.reparsed)
            yield from _reach(reading, reached, assignment.moment)


def _splices(at: Word, assignment: Assignment) -> bool:
    return (assignment.written.kind == "array") == (at.splice != "words")
