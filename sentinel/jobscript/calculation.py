"""Whether a substitution only calculates, so that nothing is lost when its result is written in its place."""

from __future__ import annotations

import re

from tree_sitter import Node

from sentinel.jobscript.syntax import code_of, from_bytes, walk

_CALCULATORS = frozenset(
    [
        "basename",
        "bc",
        "cat",
        "cut",
        "date",
        "dirname",
        "echo",
        "expr",
        "head",
        "nproc",
        "printf",
        "seq",
        "tail",
        "tr",
        "wc",
    ]
)
_PROGRAMS = re.compile(r"(?:.*/)?(?:awk|perl|python[\d.]*)")
_ARITHMETIC = re.compile(r"(?:\s|BEGIN|print|int|round|\$\{?\w++\}?|[\d_]++(?:[eE][-+]?\d++)?|[-+*/().,%'\"{};\\])*+")
"""Code that can only print what it calculates: no other name, no assignment, no file, no backtick."""

_EFFECTS = frozenset(
    ["file_redirect", "assignment", "postfix_expression", "variable_assignment", "process_substitution"]
)


def only_calculates(expansion: Node) -> bool:
    """True for `$X`, `$((A*B))`, `$(echo … | bc)` and a `perl -e`, `python -c` or `awk` that prints a sum.

    False for all that writes a file, sets a variable, or runs a program that is not known to do neither.
    """
    for node in walk(expansion):
        text = code_of(node)
        if node.type in _EFFECTS or (node.type == "unary_expression" and text[:2] in ("++", "--")):
            return False
        if node.type == "binary_expression" and any(_assigns(child.type) for child in node.children):
            return False
        if re.match(r"\$\{\w+:?[=?]", text):
            return False
        if node.type == "command" and not _is_calculator(node):
            return False
    return True


def _assigns(operator: str) -> bool:
    return operator.endswith("=") and operator not in ("==", "!=", "<=", ">=")


def _is_calculator(command: Node) -> bool:
    named = command.child_by_field_name("name")
    name = from_bytes((named.text if named is not None else None) or b"")
    if name in _CALCULATORS:
        return not (name == "printf" and "-v" in code_of(command).split())
    arguments = [code_of(node) for node in command.children_by_field_name("argument")]
    code = arguments[-1] if arguments else ""
    return bool(_PROGRAMS.fullmatch(name)) and len(arguments) <= 2 and bool(_ARITHMETIC.fullmatch(code))
