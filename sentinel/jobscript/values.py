"""What a word of a script comes to, where that can be known without running it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from sentinel.jobscript.arguments import Moment, Reading
from sentinel.jobscript.directives import directive
from sentinel.jobscript.surety import refuse_other_ways_to_set
from sentinel.vocabulary.errors import ScriptRefused

_WHOLE = re.compile(r"\$(?:(?P<name>\w+)|\{(?P<braced>\w+)\}|\{(?P<defaulted>\w+):?[-=](?P<default>[^{}]*)\})")
_SUM = re.compile(r"\$\(\((?P<sum>.*)\)\)", re.DOTALL)
_PRINTED = re.compile(
    r"""\$\(\s*(?:perl\s+-l?e|python[\d.]*\s+-c)\s+(?P<quote>["'])\s*print\b(?P<sum>[^"']*?);?\s*(?P=quote)\s*\)""",
    re.DOTALL,
)
_OF_SLURM = {"SLURM_NNODES": "--nodes", "SLURM_JOB_NUM_NODES": "--nodes", "SLURM_JOB_NAME": "--job-name"}
"""What Slurm sets from a directive."""

_LONGEST_SUM = 200
_DEEPEST = 20


class Unknown(Exception):  # noqa: N818 - reads as what it says; the reader of arguments says it and goes on
    """A value that the script does not show. Its text says why."""


def text_of(reading: Reading, raw: str, moment: Moment, depth: int = 0) -> str:
    """The text that a word, as it is written, comes to at this moment. Unknown where the script does not show it."""
    if depth > _DEEPEST:
        raise Unknown(f"{raw} leads back to itself")
    written = raw[1:-1] if len(raw) > 1 and raw[0] == raw[-1] == '"' else raw

    def inner(found: re.Match[str]) -> str:
        return _variable(reading, found, moment, depth)

    if (found := _SUM.fullmatch(written)) is not None:
        return _calculated(_named(found["sum"], reading, moment, depth), whole=True)
    if (found := _PRINTED.fullmatch(written)) is not None:
        code = found["sum"] if found["quote"] == "'" else _WHOLE.sub(inner, found["sum"])
        return _calculated(code, whole=False)
    text = _WHOLE.sub(inner, written)
    if re.search(r"[$`]", text):
        raise Unknown(f"{raw} is not calculated here")
    return text


def _variable(reading: Reading, found: re.Match[str], moment: Moment, depth: int) -> str:
    name = found["name"] or found["braced"] or found["defaulted"]
    assignments = reading.set_before(name, moment)
    if not assignments:
        if name in _OF_SLURM and (set_by_slurm := directive(reading.script, _OF_SLURM[name])) is not None:
            return set_by_slurm
        default = f"; where it is not set it is {found['default']}" if found["defaulted"] else ""
        raise Unknown(f"${name} is not set in the script{default}")
    try:
        refuse_other_ways_to_set(reading, name)
    except ScriptRefused as refused:
        raise Unknown(f"${name} is changed in line {refused.line_number}, too") from refused
    if len(assignments) > 1:
        lines = " and ".join(str(reading.script.line(a.start)) for a in assignments)
        raise Unknown(f"${name} is set in lines {lines}")
    only = assignments[0]
    if only.written.conditions or only.written.kind == "array":
        raise Unknown(f"${name} is a list, or set only if a condition holds")
    if only.value is None or not only.written.words:
        return found["default"] or ""
    words = [
        word.text if word.text is not None else text_of(reading, word.raw, only.moment, depth + 1)
        for word in only.written.words
    ]
    text = " ".join(words)
    return _calculated(text, whole=True) if only.integer else text


def _named(code: str, reading: Reading, moment: Moment, depth: int) -> str:
    """The sum with its variables filled in; inside `$((…))` they may stand without a `$`."""
    dollars = re.sub(r"(?<![\w${.])([A-Za-z_]\w*)", r"${\1}", code)
    return _WHOLE.sub(lambda found: _variable(reading, found, moment, depth), dollars)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _calculated(code: str, *, whole: bool) -> str:
    """A sum of numbers with + - * / and brackets; the shell's own are whole numbers, and divide towards zero."""
    stripped = code.strip().rstrip(";").strip()
    if (
        len(stripped) > _LONGEST_SUM
        or re.search(r"(?<![\d_.])0\d", stripped)
        or (whole and re.search(r"[._]", stripped))
    ):
        raise Unknown(f"{stripped!r} is not calculated here")
    try:
        value = _value(ast.parse(stripped, mode="eval").body, whole=whole)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as wrong:
        raise Unknown(f"{stripped!r} is not calculated here") from wrong
    return str(int(value)) if float(value).is_integer() else repr(value)


def _value(node: ast.expr, *, whole: bool) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, whole=whole)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, whole=whole), _value(node.right, whole=whole)
        if whole and isinstance(node.op, ast.Div):
            sign = -1 if (left < 0) != (right < 0) else 1
            return sign * (abs(int(left)) // abs(int(right)))
        result: int | float = _OPERATORS[type(node.op)](left, right)
        return result
    raise ValueError(ast.dump(node))
