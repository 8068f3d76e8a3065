"""Setting a variable of the script."""

from __future__ import annotations

import re

from tree_sitter import Node

from sentinel.jobscript.arguments import Assignment, Reading
from sentinel.jobscript.calculation import only_calculates
from sentinel.jobscript.change import Edit, SetVariable
from sentinel.jobscript.quoting import is_plain
from sentinel.jobscript.surety import refuse_other_ways_to_set
from sentinel.jobscript.syntax import source_of
from sentinel.vocabulary.errors import ScriptRefused


def set_variable(reading: Reading, change: SetVariable) -> tuple[Edit, ...]:
    """The edit that gives the variable's one assignment this value; the variable's other uses follow it."""
    assignment = _only_assignment(reading, change.name)
    line = reading.script.line(assignment.start)
    if assignment.appends or assignment.written.kind == "array":
        raise ScriptRefused(line, f"${change.name} holds a list there, not one value")
    if not is_plain(change.value):
        raise ScriptRefused(
            line,
            f"the value {change.value!r} is not one plain word, and what ${change.name} is used for can't be followed",
        )
    if assignment.integer and not re.fullmatch(r"-?\d+", change.value):
        raise ScriptRefused(line, f"${change.name} is declared a whole number, which {change.value!r} is not")
    value = assignment.value
    if value is None:
        return (Edit(start=assignment.written.end, end=assignment.written.end, new=change.value),)
    if not only_calculates(value):
        raise ScriptRefused(line, f"${change.name} is made by a substitution that may do more than calculate")
    if _says(value, assignment, change.value):
        return ()
    quote = chr(value.text[0]) if value.text and value.type in ("string", "raw_string") else ""
    return (Edit(start=value.start_byte, end=value.end_byte, new=f"{quote}{change.value}{quote}"),)


def _says(value: Node, assignment: Assignment, wanted: str) -> bool:
    """Whether the assignment already has this very value, blanks inside its quotes included."""
    words = assignment.written.words
    unquoted = source_of(value).strip(b"\"'")
    return len(words) == 1 and words[0].text == wanted and len(unquoted) == len(words[0].raw.strip("\"'").encode())


def _only_assignment(reading: Reading, name: str) -> Assignment:
    """The one place that sets a variable. ScriptRefused, naming the lines, where there is none or more than one."""
    script = reading.script
    refuse_other_ways_to_set(reading, name)
    found = reading.assignments.get(name, ())
    if not found:
        raise ScriptRefused(None, f"${name} is not set in it")
    if len(found) > 1:
        lines = " and ".join(str(script.line(a.start)) for a in found)
        raise ScriptRefused(script.line(found[-1].start), f"${name} is set in lines {lines}: which one counts?")
    if found[0].one_command or found[0].written.conditions:
        line = script.line(found[0].start)
        raise ScriptRefused(line, f"${name} is set there for one command only, or only if a condition holds")
    return found[0]
