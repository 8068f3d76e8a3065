"""A job script as tree-sitter's bash grammar reads it. Positions are bytes of the source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from sentinel.vocabulary.errors import ScriptRefused

ARGUMENTS_OF_A_SHELL = (re.compile(r"(?:.*/)?(?:ba)?sh"), re.compile(r"-[a-z]*c"))
"""The two words before a text that a shell of its own runs: `bash -c`, `sh -lc`."""

_BRANCHES = frozenset(
    [
        "case_item",
        "command_substitution",
        "do_group",
        "elif_clause",
        "else_clause",
        "function_definition",
        "pipeline",
        "process_substitution",
        "subshell",
    ]
)
_LARGEST_BYTES = 1 << 20  # Slurm takes 4 MiB by default; the largest script that is known has 30 KiB
_LANGUAGE = Language(tree_sitter_bash.language())
_BACKTICK = re.compile(rb"(?<!\\)`")
_SPACED_CONTINUATION = re.compile(rb"\\[ \t]+\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The text and its trees."""

    source: bytes
    roots: tuple[Node, ...]  # The script's own tree, then one for each single-quoted text that a `bash -c` in it runs
    hosts: Mapping[int, Node]  # Where such a text stands: the quoted text's node, by the id of its tree's root

    def line(self, position: int) -> int:
        """The line of a byte, counted from 1."""
        return self.source.count(b"\n", 0, position) + 1

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
    if len(source) > _LARGEST_BYTES:
        raise ScriptRefused(None, f"it has {len(source)} bytes, and the limit is {_LARGEST_BYTES >> 20} MiB")
    if source.startswith(b"\xef\xbb\xbf"):
        raise ScriptRefused(1, "it begins with a byte order mark, so that its first line is none that sbatch knows")
    if b"\r" in source:
        line = source.count(b"\n", 0, source.index(b"\r")) + 1
        raise ScriptRefused(line, "it ends in a DOS line break, which sbatch and bash refuse")
    if b"\0" in source:
        raise ScriptRefused(source.count(b"\n", 0, source.index(b"\0")) + 1, "it holds a NUL byte")
    roots = [Parser(_LANGUAGE).parse(source).root_node]
    hosts: dict[int, Node] = {}
    for root in roots:  # grows while it is read: a text that a shell runs may hold another
        _check(source, root)
        for quoted in _run_by_a_shell(root):
            inside = b"\n" * (quoted.start_byte + 1) + source[quoted.start_byte + 1 : quoted.end_byte - 1]
            nested = Parser(_LANGUAGE).parse(inside).root_node
            hosts[nested.id] = quoted
            roots.append(nested)
    return Script(source=source, roots=tuple(roots), hosts=hosts)


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
        if then or last or above.type in _BRANCHES:
            found.append(above.id)
    return tuple(reversed(found))


def spaced_continuation(script: Script, start: int, end: int) -> int | None:
    """The line of a backslash that is followed by blanks and so continues nothing; None where there is none."""
    found = _SPACED_CONTINUATION.search(script.source, start, end)
    return None if found is None else script.line(found.start())


def _run_by_a_shell(root: Node) -> Iterator[Node]:
    shell, minus_c = ARGUMENTS_OF_A_SHELL
    for command in walk(root):
        if command.type != "command":
            continue
        words = [child for child in command.children if child.is_named and child.type != "variable_assignment"]
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            if third.type == "raw_string" and shell.fullmatch(code_of(first)) and minus_c.fullmatch(code_of(second)):
                yield third


def source_of(node: Node) -> bytes:
    """What stands there, as it is written."""
    return node.text or b""


def code_of(node: Node) -> str:
    """The same as text."""
    return from_bytes(source_of(node))


def _check(source: bytes, root: Node) -> None:
    """ScriptRefused where the grammar found an error, or read on from one pair of backticks into the next."""
    wrong = [node.start_byte for node in walk(root) if node.type == "ERROR" or node.is_missing or _runs_on(node)]
    if wrong or root.has_error:
        line = source.count(b"\n", 0, min(wrong, default=0)) + 1
        raise ScriptRefused(line, "this is not bash that can be read with certainty")


def _runs_on(node: Node) -> bool:
    text = source_of(node).lstrip(b" \t\n\\")
    return node.type == "command_substitution" and text[:1] == b"`" and len(_BACKTICK.findall(text)) != 2
