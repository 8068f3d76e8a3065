"""A job script as tree-sitter's bash grammar reads it. Positions are bytes of the source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from sentinel.vocabulary.errors import ScriptRefused

# The two words before a text that a shell of its own runs: `bash -c`, `sh -lc`.
_SHELL, _MINUS_C = re.compile(r"(?:.*/)?(?:ba)?sh"), re.compile(r"-[a-z]*c")
_BRANCHES = re.compile(
    "case_item|(command|process)_substitution|do_group|(elif|else)_clause|function_definition|pipeline|subshell"
)
_NOT_IN_A_SCRIPT = {b"\r": "it ends in a DOS line break, which sbatch and bash refuse", b"\0": "it holds a NUL byte"}
_LARGEST_BYTES = 1 << 20  # Slurm takes 4 MiB by default; the largest script that is known has 30 KiB
_LANGUAGE = Language(tree_sitter_bash.language())
_BACKTICK = re.compile(rb"(?<!\\)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The text and its trees."""

    source: bytes
    roots: Sequence[Node]  # The script's own tree, then one for each single-quoted text that a `bash -c` in it runs
    hosts: Mapping[int, Node]  # Where such a text stands: the quoted text's node, by the id of its tree's root

    def line(self, position: int) -> int:
        """The line of a byte, counted from 1."""
        return self.source.count(b"\n", 0, position) + 1

    def lines(self, positions: Iterable[int]) -> str:
        """The lines of these bytes in words, as `3 and 7`."""
        return " and ".join(str(self.line(position)) for position in positions)

    def refusal(self, position: int, reason: str) -> ScriptRefused:
        """The error that names the line of this byte."""
        return ScriptRefused(self.line(position), reason)

    def unclear(self, what: str, positions: Sequence[int]) -> ScriptRefused:
        """The error that names several places of which only one can count."""
        return self.refusal(positions[-1], f"{what} in lines {self.lines(positions)}: which one counts?")

    def text(self, start: int, end: int) -> str:
        return from_bytes(self.source[start:end])

    def nodes(self) -> Iterator[Node]:
        for root in self.roots:
            yield from walk(root)


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def from_bytes(source: bytes) -> str:
    return source.decode("utf-8", "surrogateescape")


def parse(text: str) -> Script:
    """The script with its trees. ScriptRefused where bash, sbatch or this grammar can't read it."""
    try:
        source = to_bytes(text)
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise ScriptRefused(line, "it holds half of a surrogate pair, which is no character") from error
    roots: list[Node] = []
    hosts: dict[int, Node] = {}
    script = Script(source=source, roots=roots, hosts=hosts)
    if len(source) > _LARGEST_BYTES:
        raise ScriptRefused(None, f"it has {len(source)} bytes, and the limit is {_LARGEST_BYTES >> 20} MiB")
    if source.startswith(b"\xef\xbb\xbf"):
        raise ScriptRefused(1, "it begins with a byte order mark, so sbatch does not recognise its first line")
    for byte, reason in _NOT_IN_A_SCRIPT.items():
        if byte in source:
            raise script.refusal(source.index(byte), reason)
    roots.append(Parser(_LANGUAGE).parse(source).root_node)
    for root in roots:  # grows while it is read: a text that a shell runs may hold another
        wrong = [node.start_byte for node in walk(root) if node.type == "ERROR" or node.is_missing or _runs_on(node)]
        if wrong or root.has_error:
            raise script.refusal(min(wrong, default=0), "this is not bash that can be read with certainty")
        for quoted in _run_by_a_shell(root):
            inside = b"\n" * (quoted.start_byte + 1) + source[quoted.start_byte + 1 : quoted.end_byte - 1]
            nested = Parser(_LANGUAGE).parse(inside).root_node
            hosts[nested.id] = quoted
            roots.append(nested)
    return script


def hidden(source: bytes, start: int, end: int, spans: Iterable[tuple[int, int]]) -> bytes:
    """The bytes from `start` to `end` with those of each span as NULs, which no script has."""
    masked = bytearray(source[start:end])
    for first, last in spans:
        masked[first - start : last - start] = bytes(last - first)
    return bytes(masked)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, in the order of the text."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def climb(script: Script, node: Node) -> Iterator[tuple[Node, Node]]:
    """Each pair of a node and the one above it, from this node to the script's root."""
    while True:
        above = node.parent or script.hosts.get(node.id)
        if above is None:
            return
        yield node, above
        node = above


def conditions(script: Script, node: Node) -> tuple[int, ...]:
    """What has to happen before a node runs in the script's own shell: branches, loops, functions, subshells around it.

    Ids of nodes, outermost first. What runs under `(a,)` has happened for what runs under `(a, b)`, not the other way.
    """
    found = []
    for below, above in climb(script, node):
        then = above.type == "if_statement" and below.type not in ("elif_clause", "else_clause")
        last = above.type == "list" and below.id != above.children[0].id
        if then or last or _BRANCHES.fullmatch(above.type):
            found.append(above.id)
    return tuple(reversed(found))


def hands_to_a_shell(first: str, second: str) -> bool:
    """Whether a shell of its own runs the text behind these two words, as `bash -c`."""
    return bool(_SHELL.fullmatch(first) and _MINUS_C.fullmatch(second))


def _run_by_a_shell(root: Node) -> Iterator[Node]:
    for command in walk(root):
        if command.type != "command":
            continue
        words = [child for child in command.children if child.is_named and child.type != "variable_assignment"]
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            if third.type == "raw_string" and hands_to_a_shell(code_of(first), code_of(second)):
                yield third


def source_of(node: Node) -> bytes:
    """What stands there, as it is written."""
    return node.text or b""


def code_of(node: Node) -> str:
    """The same as text."""
    return from_bytes(source_of(node))


def _runs_on(node: Node) -> bool:
    """Whether the grammar read on from one pair of backticks into the next."""
    text = source_of(node).lstrip(b" \t\n\\")
    return node.type == "command_substitution" and text[:1] == b"`" and len(_BACKTICK.findall(text)) != 2


_CALCULATORS = re.compile("basename|bc|cat|cut|date|dirname|echo|expr|head|nproc|printf|seq|tail|tr|wc")
_PROGRAMS = re.compile(r"(?:.*/)?(?:awk|perl|python[\d.]*)")
# Code that can only print what it calculates: no other name, no assignment, no file, no backtick.
_ARITHMETIC = re.compile(r"(?:\s|BEGIN|print|int|round|\$\{?\w++\}?|[\d_]++(?:[eE][-+]?\d++)?|[-+*/().,%'\"{};\\])*+")
_EFFECTS = re.compile("file_redirect|(variable_)?assignment|postfix_expression|process_substitution")


def only_calculates(expansion: Node) -> bool:
    """True for `$X`, `$((A*B))`, `$(echo … | bc)` and a `perl -e`, `python -c` or `awk` that prints a sum.

    False for all that writes a file, sets a variable, or runs a program that is not known to do neither.
    """
    return not any(map(_has_an_effect, walk(expansion)))


def _has_an_effect(node: Node) -> bool:
    text = code_of(node)
    return (
        _EFFECTS.fullmatch(node.type) is not None
        or (node.type == "unary_expression" and text[:2] in ("++", "--"))
        or (node.type == "binary_expression" and any(re.fullmatch(r"(?![!=<>]=).*=", c.type) for c in node.children))
        or re.match(r"\$\{\w+:?[=?]", text) is not None
        or (node.type == "command" and not _is_calculator(node))
    )


def _is_calculator(command: Node) -> bool:
    named = command.child_by_field_name("name")
    name = "" if named is None else code_of(named)
    if _CALCULATORS.fullmatch(name):
        return not (name == "printf" and "-v" in code_of(command).split())
    arguments = [code_of(node) for node in command.children_by_field_name("argument")]
    code = arguments[-1] if arguments else ""
    return bool(_PROGRAMS.fullmatch(name)) and len(arguments) <= 2 and bool(_ARITHMETIC.fullmatch(code))
