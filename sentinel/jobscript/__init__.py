"""Rewriting a copy of a job script: the changes asked for, and not a byte more, or a refusal that names the line.

The script is read with bash's grammar (tree-sitter), never run. What is changed must surely reach the trainer: the
Python program that the script starts. Each change is made on its own and then read again: had it changed what else
the trainer gets, it would be refused. What a script does not show can't be seen: options that come from the
environment, from a sourced file or from `sbatch`'s arguments; that is for the proof after the restart.

In: a script's text, and the changes as values. Out: the new text, or ScriptRefused with the line; the facts that the
script shows.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from sentinel.jobscript.arguments import ScriptReading, read
from sentinel.jobscript.change import (
    Change,
    Edit,
    RemoveOption,
    Rewritten,
    SetJson,
    SetOption,
    SetVariable,
    edited,
    refuse_unwritable,
)
from sentinel.jobscript.here_documents import set_json
from sentinel.jobscript.options import refuse_more_than_asked, remove_option, set_option, set_variable
from sentinel.jobscript.syntax import parse
from sentinel.jobscript.training_yaml import set_in_yaml

__all__ = ["Change", "RemoveOption", "Rewritten", "SetJson", "SetOption", "SetVariable", "rewrite"]


def rewrite(text: str, changes: Sequence[Change]) -> Rewritten:
    """The script with all the changes made. ScriptRefused, and nothing made, where one can't be made with certainty.

    Text that is not UTF-8 may come with surrogate escapes, and goes back with them.
    """
    new = text
    for change in changes:
        refuse_unwritable(change)
        new = _with_one(new, change)
    # Lines as bash counts them: a form feed or a line separator of Unicode ends none.
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", each) for each in (text, new))
    lines = difflib.unified_diff(before, after, "job script", "job script, rewritten")
    diff = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return Rewritten(text=new, diff=diff)


def _with_one(text: str, change: Change) -> str:
    before = read(parse(text))
    in_yaml = set_in_yaml(before, change) if isinstance(change, SetOption | RemoveOption) else None
    edits = _edits(before, change) if in_yaml is None else in_yaml
    if not edits:
        return text
    new = edited(text, edits)
    if isinstance(change, SetOption | RemoveOption) and in_yaml is None:
        refuse_more_than_asked(before, read(parse(new)), change)
    else:
        parse(new)
    return new


def _edits(reading: ScriptReading, change: Change) -> tuple[Edit, ...]:
    match change:
        case SetOption():
            return set_option(reading, change)
        case RemoveOption():
            return remove_option(reading, change)
        case SetVariable():
            return set_variable(reading, change)
        case SetJson():
            return set_json(reading, change)
