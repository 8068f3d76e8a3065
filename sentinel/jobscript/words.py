"""Words of a script: what the shell makes one argument of, and where it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from sentinel.jobscript.syntax import Script, code_of, from_bytes, hidden

# What a word that is one expansion becomes: `$X` the words of X, `${X[@]}` the elements of an array.
Splice = Literal["", "words", "elements", "quoted elements"]
_EXPANSION = re.compile("(simple_|arithmetic_)?expansion|(command|process)_substitution")
_PLAIN_EXPANSION = frozenset(["$", "${", "}", "variable_name", "subscript"])
_QUOTED = re.compile(r"""'[^']*'|"[^"\\$`]*\"""")
_BACKSLASHED = re.compile(r"\\(.)", re.DOTALL)
_BACKSLASHED_IN_QUOTES = re.compile(r'\\(?:\n|(["$`\\]))')  # A continued line is nothing
# A word of a text that is split at blanks: between single quotes, and between double ones, with continued lines.
_IN_SINGLE_QUOTES = re.compile(rb"[^ \t\n]+")
_IN_DOUBLE_QUOTES = re.compile(rb'(?!\\\n)(?:[^ \t\n\\]++|\\["$`\\\n]|\\)++')


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One argument as it is written."""

    start: int  # First byte, quotes included
    end: int
    raw: str
    text: str | None  # What the shell makes of it; None where it holds an expansion, or is not followed
    literal: str  # The same with its expansions left out
    variable: str = ""  # The variable whose words stand here; empty where this is not just an expansion
    splice: Splice = ""
    value: Node | None = None  # The only expansion of which the word consists; None where there is none, or more

    @property
    def unquoted(self) -> str:
        """What a shell that reads the word once more, as code, finds outside of quotes that open and close in it."""
        return _QUOTED.sub("", self.literal)

    @property
    def shown(self) -> str:
        """What the shell makes of it, or where that is not known how it is written."""
        return self.raw if self.text is None else self.text

    @property
    def flag(self) -> str:
        """The option that it is or begins with, as in `--lr=1e-4`; what it is otherwise means nothing."""
        return self.shown.partition("=")[0]

    @property
    def is_option(self) -> bool:
        """Whether argparse would take it for an option: a negative number is a value."""
        return re.match(r"-[^\d.]", self.shown, re.DOTALL) is not None


def word(script: Script, node: Node) -> Word:
    """A node that is one argument: bare, quoted, an expansion, or several of those without a blank between them."""
    (start, end), text = _trimmed(script, node), _literal(node)
    return _word(script, start, end, text, script.text(start, end) if text is None else text, node)


def _word(script: Script, start: int, end: int, text: str | None, literal: str, node: Node | None) -> Word:
    variable, splice = _spliced(node)
    return Word(
        start=start,
        end=end,
        raw=script.text(start, end),
        text=text,
        literal=literal,
        variable=variable,
        splice=splice,
        value=None if node is None else _only_expansion(node),
    )


def command_words(script: Script, command: Node) -> tuple[Word, ...]:
    """The command's name and its arguments."""
    named = command.children_by_field_name("name")
    name = [child for node in named for child in node.children[:1]]
    return tuple(word(script, node) for node in [*name, *command.children_by_field_name("argument")])


def words_of_string(script: Script, string: Node) -> tuple[Word, ...]:
    """The words into which a quoted text falls where it is used without quotes.

    A word that goes on over a continued line has no text: it is not followed.
    """
    start, double = string.start_byte + 1, string.type != "raw_string"
    spans = {_trimmed(script, child): child for child in string.children if _EXPANSION.fullmatch(child.type)}
    masked = hidden(script.source, start, string.end_byte - 1, spans)
    found: list[Word] = []
    for match in (_IN_DOUBLE_QUOTES if double else _IN_SINGLE_QUOTES).finditer(masked):
        written = match.group()
        if match.end() == len(masked):
            written = re.sub(rb"(\\\n)+\Z", b"", written)
        literal = from_bytes(written.replace(b"\0", b""))
        literal = _BACKSLASHED_IN_QUOTES.sub(r"\1", literal) if double else literal
        first, last = start + match.start(), start + match.start() + len(written)
        text = None if b"\0" in written or b"\\\n" in written else literal
        found.append(_word(script, first, last, text, literal, spans.get((first, last))))
    return tuple(found)


def _trimmed(script: Script, node: Node) -> tuple[int, int]:
    """A node without the blanks that the grammar may take in front of it."""
    start, end = node.start_byte, node.end_byte
    while start < end and (script.source[start : start + 1].isspace() or script.source[start : start + 2] == b"\\\n"):
        start += 1
    return start, end


def _literal(node: Node) -> str | None:
    text = code_of(node)
    if node.type in ("word", "number") and not node.named_children:
        return _BACKSLASHED.sub(r"\1", text)
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "string" and all(child.type == "string_content" for child in node.named_children):
        return _BACKSLASHED_IN_QUOTES.sub(r"\1", text[1:-1])
    if node.type == "concatenation" and "{" not in text:
        parts = [part for child in node.named_children if (part := _literal(child)) is not None]
        return "".join(parts) if len(parts) == len(node.named_children) else None
    return None


def _only_expansion(node: Node) -> Node | None:
    quoted = node.type == "string" and len(node.named_children) == 1
    inside = node.named_children[0] if quoted else node
    alone = not quoted or inside.end_byte == node.end_byte - 1
    return inside if alone and _EXPANSION.fullmatch(inside.type) else None


def _spliced(node: Node | None) -> tuple[str, Splice]:
    """The variable that an expansion splices in, and how; no variable for one with an operator: `${X/a/b}`, `${#X}`."""
    quoted = node is not None and node.type == "string"
    inside = None if node is None else _only_expansion(node)
    if inside is None or inside.type not in ("simple_expansion", "expansion"):
        return "", ""
    if any(child.type not in _PLAIN_EXPANSION for child in inside.children):
        return "", ""
    for child in inside.named_children:
        if child.type == "variable_name" and not quoted:
            return code_of(child), "words"
        if child.type == "subscript" and (index := child.child_by_field_name("index")) and index.text in (b"@", b"*"):
            name = child.child_by_field_name("name")
            whole = quoted and index.text == b"@"
            if name is not None and (whole or not quoted):
                return code_of(name), "quoted elements" if whole else "elements"
    return "", ""
