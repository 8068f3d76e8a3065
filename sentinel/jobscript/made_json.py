"""The DeepSpeed JSON that a command of the script writes, as `sed … template > config.json`: a key set behind it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection

from tree_sitter import Node

from sentinel.jobscript.arguments import ScriptCommand, ScriptReading
from sentinel.jobscript.change import Edit, SetJson
from sentinel.jobscript.syntax import climb, code_of, walk
from sentinel.jobscript.trainer import refuse_conditional, trainers

_SETS_A_KEY = (
    "python3 -c 'import functools, json, sys; path, keys, value = sys.argv[1], *map(json.loads, sys.argv[2:]); "
    "whole = json.load(open(path)); functools.reduce(lambda at, key: at.setdefault(key, {}), keys[:-1], whole)"
    '[keys[-1]] = value; json.dump(whole, open(path, "w"), indent=2)\''
)
"""Python 3 of any version, as the trainer itself needs it; where it can't be done, the job ends before the training."""


def writes(reading: ScriptReading, named: Collection[str]) -> list[Node]:
    """The redirections to the files of these names, as they are written without quotes and braces."""
    redirects = (node for node in walk(reading.script.roots[0]) if node.type == "file_redirect")
    return [
        node
        for node in redirects
        if bare(code_of(node.children[-1])) in named
        and not any(child.type == "<" for child in node.children)
        and not any(below.type == "heredoc_redirect" for below in walk(_statement(reading, node)))
    ]


def set_in_made(reading: ScriptReading, change: SetJson, redirect: Node) -> tuple[Edit, ...]:
    """The line behind the statement that writes the JSON, with which the script sets the key itself.

    ScriptRefused where the statement runs only sometimes, or something stands behind it on its line.
    """
    script, statement = reading.script, _statement(reading, redirect)
    refuse_conditional(reading, statement, redirect.start_byte, "JSON")
    if any(launch.command.node.start_byte < statement.end_byte for launch in trainers(reading)):
        raise script.refusal(redirect.start_byte, "the JSON there is written after the trainer is started")
    end = script.source.find(b"\n", statement.end_byte)
    end = len(script.source) if end < 0 else end
    if re.fullmatch(rb"[ \t]*(#.*)?", script.source[statement.end_byte : end]) is None:
        raise script.refusal(statement.end_byte, "another command follows the one that writes the JSON")
    line_start = script.source.rfind(b"\n", 0, statement.start_byte) + 1
    indent = re.match(rb"[ \t]*", script.source[line_start:])
    target = code_of(redirect.children[-1])
    quoted = target if target[:1] in ("'", '"') else f'"{target}"'
    key, value = (shlex.quote(json.dumps(each)) for each in (list(change.path), change.value))
    line = f"{_SETS_A_KEY} {quoted} {key} {value} || exit 1"
    return (Edit(start=end, end=end, new=f"\n{(indent[0] if indent else b'').decode()}{line}"),)


def is_ours(command: ScriptCommand) -> bool:
    """Whether the command is one that `set_in_made` has written."""
    return code_of(command.node).startswith(_SETS_A_KEY)


def bare(name: str) -> str:
    """A file's name as it is written, without quotes and braces."""
    return re.sub(r"[\"'{}]", "", name)


def _statement(reading: ScriptReading, redirect: Node) -> Node:
    """The command or the pipeline with this redirection."""
    outside = ("redirected_statement", "pipeline")
    return next((below for below, above in climb(reading.script, redirect) if above.type not in outside), redirect)
