"""Words of a script: what the shell makes one argument of, and where it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from sentinel.jobscript.syntax import Script, code_of, from_bytes

# What a word that is one expansion becomes: `$X` the words of X, `${X[@]}` the elements of an array.
Splice = Literal["", "words", "elements", "quoted elements"]
_EXPANSION = re.compile("(simple_|arithmetic_)?expansion|(command|process)_substitution")
_PLAIN_EXPANSION = frozenset(["$", "${", "}", "variable_name", "subscript"])
_QUOTED = re.compile(r"""'[^']*'|"[^"\\$`]*\"""")
_BACKSLASHED = re.compile(r"\\(.)", re.DOTALL)
_BACKSLASHED_IN_QUOTES = re.compile(r'\\(["$`\\])')


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
    def is_option(self) -> bool:
        """Whether argparse would take it for an option: a negative number is a value."""
        text = self.raw if self.text is None else self.text
        return len(text) > 1 and text[0] == "-" and not text[1].isdigit() and text[1] != "."


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
    found: list[Word] = []
    pieces: list[_Piece] = []
    for piece in _pieces(script, string):
        if piece.kind == "blank":
            if pieces:
                found.append(_joined(script, pieces))
            pieces = []
        elif piece.kind != "continuation" or pieces:
            pieces.append(piece)
    while pieces and pieces[-1].kind == "continuation":
        pieces.pop()
    if pieces:
        found.append(_joined(script, pieces))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of bytes of one kind inside quotes."""

    kind: str  # blank, text, continuation or expansion
    start: int
    end: int
    text: str = ""
    node: Node | None = None


_RUNS = re.compile(rb'(?P<blank>[ \t\n]+)|(?P<continuation>\\\n)|(?P<escaped>\\["$`\\])|(?P<text>[^ \t\n\\]+|\\)')


def _pieces(script: Script, string: Node) -> Iterator[_Piece]:
    position, last = string.start_byte + 1, string.end_byte - 1
    for node in (child for child in string.children if _EXPANSION.fullmatch(child.type)):
        start, end = _trimmed(script, node)
        yield from _runs(script, position, start, single=False)
        yield _Piece("expansion", start, end, node=node)
        position = end
    yield from _runs(script, position, last, single=string.type == "raw_string")


def _runs(script: Script, start: int, end: int, *, single: bool) -> Iterator[_Piece]:
    for found in _RUNS.finditer(script.source, start, end):
        kind, text = found.lastgroup, from_bytes(found.group())
        if kind == "blank" or (kind == "continuation" and not single):
            yield _Piece(kind, found.start(), found.end())
        elif kind == "continuation":  # two bytes between single quotes: a backslash, then a blank
            yield _Piece("text", found.start(), found.end() - 1, "\\")
            yield _Piece("blank", found.end() - 1, found.end())
        else:
            yield _Piece("text", found.start(), found.end(), text[1:] if kind == "escaped" and not single else text)


def _joined(script: Script, pieces: list[_Piece]) -> Word:
    literal = "".join(piece.text for piece in pieces)
    text = literal if all(piece.kind == "text" for piece in pieces) else None
    return _word(script, pieces[0].start, pieces[-1].end, text, literal, pieces[0].node if len(pieces) == 1 else None)


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
        return _BACKSLASHED_IN_QUOTES.sub(r"\1", text[1:-1].replace("\\\n", ""))
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
