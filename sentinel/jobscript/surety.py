"""Whether a list of arguments surely reaches the trainer as it is written."""

from __future__ import annotations

import re

from tree_sitter import Node

from sentinel.jobscript.arguments import ArgumentList, Reached, Reading
from sentinel.jobscript.syntax import code_of, spaced_continuation
from sentinel.vocabulary.errors import ScriptRefused

_SETTERS = frozenset(["getopts", "let", "mapfile", "read", "readarray", "unset"])
_STRUCTURE = re.compile(r"[\"'`\\]|^#")


def refuse_unsure(reading: Reading, at: Reached) -> None:
    """ScriptRefused, naming the line, where the word may not reach the trainer, or not as it is written."""
    for outer, inner in zip(at.path, at.path[1:], strict=False):
        line = reading.script.line(at.word.start if inner is at.written else inner.start)
        if outer.conditions[: len(inner.conditions)] != inner.conditions:
            raise ScriptRefused(line, f"${inner.variable} is set there only if a condition holds or a function runs")
        refuse_other_ways_to_set(reading, inner.variable)
        whole = [a for a in reading.assignments[inner.variable] if not a.appends and not a.one_command]
        if len(whole) > 1:
            lines = " and ".join(str(reading.script.line(a.start)) for a in whole)
            raise ScriptRefused(
                reading.script.line(whole[-1].start), f"${inner.variable} is set in lines {lines}: which one counts?"
            )
    _refuse_broken(reading, at.written)
    if at.reparsed:
        _refuse_structure(reading, at)


def refuse_other_ways_to_set(reading: Reading, name: str) -> None:
    """ScriptRefused where a variable is also set by a loop, by `read` and its like, or by arithmetic."""
    script = reading.script
    for node in script.nodes():
        if _sets(node, name):
            raise ScriptRefused(script.line(node.start_byte), f"${name} is changed there, too")
    for command in reading.commands:
        texts = [reached.word.text or "" for reached in command.words[1:]]
        setter = command.name in _SETTERS or (command.name == "printf" and "-v" in texts)
        if setter and any(text == name or text.startswith((f"{name}=", f"{name}+", f"{name}-")) for text in texts):
            raise ScriptRefused(script.line(command.node.start_byte), f"${name} is changed there, too")


def _sets(node: Node, name: str) -> bool:
    """Whether this is a loop over the variable, `name[1]=…`, `unset`, `((name++))`, `((name = …))` or `${name:=…}`."""
    text = code_of(node)
    if node.type == "variable_assignment":
        element = node.child_by_field_name("name")
        return element is not None and element.type == "subscript" and text.startswith(f"{name}[")
    if node.type == "for_statement":
        variable = node.child_by_field_name("variable")
        return variable is not None and variable.text == name.encode()
    if node.type == "expansion":
        return re.match(rf"\$\{{{name}:?=", text) is not None
    if node.type == "binary_expression":
        return re.match(rf"{name}\s*[-+*/%]?=(?!=)", text) is not None
    counts = node.type in ("postfix_expression", "unary_expression") and re.search(r"\+\+|--", text) is not None
    return (counts or node.type == "unset_command") and any(code_of(child) == name for child in node.named_children)


def _refuse_broken(reading: Reading, written: ArgumentList) -> None:
    script = reading.script
    if (line := spaced_continuation(script, written.start, written.end)) is not None:
        raise ScriptRefused(line, "blanks follow the backslash, so the line is not continued")
    for word in written.words:
        if word.raw == "\\" and written.kind != "command":
            raise ScriptRefused(script.line(word.start), "a backslash between quotes is an argument of its own")
        if word.raw.startswith("#") and written.kind.endswith("quotes"):
            raise ScriptRefused(script.line(word.start), "a # between quotes begins no comment")
    if separators := reading.assignments.get("IFS"):
        for assignment in separators:
            if not assignment.one_command:
                raise ScriptRefused(script.line(assignment.start), "IFS changes how texts are split into words")


def _refuse_structure(reading: Reading, at: Reached) -> None:
    """Inside a text that is read as code, only words whose quotes close in them are what they look like."""
    for word in at.written.words:
        if word.value is None and word.start <= at.word.end and _STRUCTURE.search(word.unquoted):
            line = reading.script.line(at.word.start)
            raise ScriptRefused(line, f"a second shell reads this list as code, with {word.raw} in it")
