"""Here-documents of a script; the DeepSpeed JSON in one: reading it, and setting a key of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tree_sitter import Node

from sentinel.jobscript.arguments import Reached, ScriptReading
from sentinel.jobscript.change import Edit, SetJson
from sentinel.jobscript.made_json import bare, is_ours, set_in_made, writes
from sentinel.jobscript.syntax import code_of, from_bytes, hidden, source_of, walk
from sentinel.jobscript.trainer import refuse_conditional, trainers
from sentinel.vocabulary.errors import LineError, ScriptRefused

_EXPANSIONS = frozenset(["arithmetic_expansion", "command_substitution", "expansion", "simple_expansion"])
_NOT_ALONE = "the here-document that begins there is not JSON alone:"
_EDITORS = frozenset(["perl", "python", "python3", "sed"])
JSON_OPTIONS = ("--deepspeed_config", "--deepspeed-config")
Fill = Callable[[str, int], str]  # (an expansion as it is written, where) -> what the shell makes of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A here-document that holds a JSON object, or the trainer's YAML."""

    start: int  # First byte of its body
    masked: str  # The body with each of the shell's expansions as digits of the same length in bytes
    quoted: bool  # Whether the shell leaves the body as it is: `<<'EOT'`
    destination: str  # The file that it is written to, as the script says it
    node: Node


def set_json(reading: ScriptReading, change: SetJson) -> tuple[Edit, ...]:
    """The edit that sets the key, or adds it, and the objects above it, behind the last member of what is there."""
    try:
        value = json.dumps(change.value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ScriptRefused(None, f"{'.'.join(change.path)} can't be {change.value!r} in JSON: {error}") from error
    if (redirect := _made(reading)) is not None:
        refuse_later_editors(reading, code_of(redirect.children[-1]), redirect.end_byte, "JSON")
        return set_in_made(reading, change, redirect)
    document = _the_document(reading)
    try:
        edit = _edit(document, change, value)
        _check(document, edit, change)
    except (ValueError, LineError, RecursionError) as error:
        where = "in the JSON that begins there," if isinstance(error, LineError) else _NOT_ALONE
        raise reading.script.refusal(document.start, f"{where} {error}") from error
    return () if edit is None else (in_script(document, edit),)


def in_script(document: Document, edit: Edit) -> Edit:
    """An edit of the document as one of the script, with what a shell would expand escaped."""
    new = edit.new if document.quoted else re.sub(r"[$`\\]", r"\\\g<0>", edit.new)
    return Edit(start=document.start + edit.start, end=document.start + edit.end, new=new)


def filled_json(reading: ScriptReading, fill: Fill) -> str | None:
    """The JSON with what `fill` makes of each expansion, given as it is written and where. None where there is none.

    ScriptRefused where it is not clear which here-document counts, or whether it is the last word.
    """
    if not any(_documents(reading)):
        return None
    return filled(reading, _the_document(reading), fill)


def filled(reading: ScriptReading, document: Document, fill: Fill) -> str:
    """The document with what `fill` makes of each expansion, given as it is written and where."""
    source, position, parts = reading.script.source, document.start, []
    for node in _expansions(document.node) if not document.quoted else ():
        if node.start_byte >= position:
            parts += [from_bytes(source[position : node.start_byte]), fill(code_of(node), node.start_byte)]
            position = node.end_byte
    return "".join([*parts, from_bytes(source[position : document.node.end_byte])])


def _edit(document: Document, change: SetJson, value: str) -> Edit | None:
    """The change in positions of the masked text; None where the key has this value."""
    text, start = document.masked, document.masked.index("{")
    for depth, key in enumerate(change.path):
        inside = members(text, start)
        named = [member for member in inside if member.key == key]
        if len(named) > 1:
            raise LineError(f"{'.'.join(change.path[: depth + 1])} is given twice")
        if not named:
            return _addition(text, start, inside, change.path[depth:], change.value)
        member = named[0]
        if depth + 1 == len(change.path):
            expanded = (node.start_byte - document.start for node in _expansions(document.node))  # not known here
            same = json.loads(text[member.start : member.end]) == change.value
            same = same and not any(member.start <= place < member.end for place in expanded)
            return None if same else Edit(start=member.start, end=member.end, new=value)
        if not text.startswith("{", member.start):
            raise LineError(f"{'.'.join(change.path[: depth + 1])} is not an object")
        start = member.start
    return None


def _addition(text: str, start: int, inside: list[HereDocumentMember], path: tuple[str, ...], value: Any) -> Edit:
    for key in reversed(path[1:]):
        value = {key: value}
    position, indent = inside[-1].end if inside else start + 1, " "
    if inside and not (before := text[: inside[-1].key_start].rpartition("\n")[2]).strip():
        indent = f"\n{before}"  # members stand on lines of their own
    body = json.dumps(value, indent=None if indent == " " else 2).replace("\n", indent)
    new = f"{json.dumps(path[0])}: {body}"
    return Edit(start=position, end=position, new=f",{indent}{new}" if inside else new)


def _check(document: Document, edit: Edit | None, change: SetJson) -> None:
    """The JSON after the edit is the JSON before it with this one key set: anything else is a mistake of ours."""
    if edit is None:
        return
    wanted = json.loads(document.masked)
    inside = wanted
    for key in change.path[:-1]:
        inside = inside.setdefault(key, {})
    inside[change.path[-1]] = change.value
    new = document.masked[: edit.start] + edit.new + document.masked[edit.end :]
    if json.loads(new) != json.loads(json.dumps(wanted)):
        raise LineError("the change would reach further than its key")


def _the_document(reading: ScriptReading) -> Document:
    """The here-document with the DeepSpeed JSON: the only one with JSON in it, or the one that the trainer is given."""
    found = list(_documents(reading))
    if len(found) > 1:
        named = _configured(reading)
        found = [document for document in found if bare(document.destination) in named] or found
    if not found:
        for node in reading.script.nodes():
            if node.type == "herestring_redirect" and b"{" in source_of(node):
                reason = "the JSON there is a here-string, which is not followed"
                raise reading.script.refusal(node.start_byte, reason)
        raise ScriptRefused(None, "no here-document in it holds the DeepSpeed JSON")
    return the_only(reading, found, "JSON")


def the_only(reading: ScriptReading, found: Sequence[Document], what: str) -> Document:
    """The only one of these documents. ScriptRefused where there are more, where the trainer may start without it, and
    where it is edited after it is written."""
    only, *others = found
    if others:
        raise reading.script.unclear(f"here-documents with {what} begin", [document.start for document in found])
    refuse_conditional(reading, only.node, only.start, what)
    refuse_later_editors(reading, only.destination, only.start, what)
    return only


def _made(reading: ScriptReading) -> Node | None:
    """Where a command of the script writes the JSON that the trainer is given; None where a here-document holds it, or
    nothing in the script does."""
    if any(_documents(reading)):
        return None
    try:
        found = writes(reading, _configured(reading))
    except ScriptRefused:  # it starts no trainer that is known
        return None
    if len(found) > 1:
        raise reading.script.unclear("the DeepSpeed JSON is written", [node.start_byte for node in found])
    return found[0] if found else None


def _documents(reading: ScriptReading) -> Iterator[Document]:
    return documents(reading, lambda _, body: body.lstrip().startswith(b"{"))


def documents(reading: ScriptReading, wanted: Callable[[str, bytes], bool]) -> Iterator[Document]:
    """The here-documents that `wanted` picks by the file that each is written to and its body."""
    script = reading.script
    for redirect in script.nodes():
        if redirect.type != "heredoc_redirect":
            continue
        parts = {child.type: child for child in reversed(redirect.children)}
        opening, body = parts.get("heredoc_start"), parts.get("heredoc_body")
        destination = _destination(redirect)
        if opening is None or body is None or not wanted(destination, source_of(body)):
            continue
        start, end = body.start_byte, body.end_byte
        quoted = re.search(rb"[\"'\\]", source_of(opening)) is not None
        if not quoted and (backslash := script.source.find(b"\\", start, end)) >= 0:
            raise script.refusal(backslash, "a backslash in a here-document is not followed")
        spans = ((node.start_byte, node.end_byte) for node in (() if quoted else _expansions(body)))
        # A character for each byte: positions stay.
        masked = hidden(script.source, start, end, spans).decode("latin-1").replace("\0", "1")
        yield Document(start=start, masked=masked, quoted=quoted, destination=destination, node=body)


def _expansions(body: Node) -> Iterator[Node]:
    return (node for node in walk(body) if node.type in _EXPANSIONS)


def _destination(redirect: Node) -> str:
    above = redirect.parent
    around = [*redirect.children, *(above.children if above is not None else [])]
    targets = [child.children[-1] for child in around if child.type == "file_redirect"]
    return code_of(targets[-1]) if targets else ""


def json_words(reading: ScriptReading) -> Iterator[Reached]:
    """The words that name the DeepSpeed JSON: after --deepspeed_config, or joined with it."""
    for launch in trainers(reading):
        for first, second in zip(launch.arguments, launch.arguments[1:], strict=False):
            flag, joined, _ = first.word.raw.partition("=")
            if flag in JSON_OPTIONS:
                yield first if joined else second


def _configured(reading: ScriptReading) -> set[str]:
    return {name for word in json_words(reading) for name in names_of(word)}


def names_of(reached: Reached) -> set[str]:
    """How a script may name the file that the trainer gets by this word: as it is written, and by its variables."""
    names = (reached.word.raw, *(f"${step.variable}" for step in reached.path if step.variable))
    return {bare(re.sub(r"\A--[\w-]+=", "", name)) for name in names}


def refuse_later_editors(reading: ScriptReading, destination: str, written: int, what: str) -> None:
    """A `sed -i` on the file after it is written would change what was set here, or be broken by it."""
    name = bare(destination)
    for command in reading.commands:
        if is_ours(command):
            continue
        script_of_its_own = any(reached.word.text in ("-c", "-e", "-i", "-pi") for reached in command.words)
        after = command.node.start_byte > written
        own = [word.raw for reached in command.words[:1] for word in reached.path[0].words]
        if after and name and command.name in _EDITORS and script_of_its_own and name in map(bare, own):
            raise reading.script.refusal(command.node.start_byte, f"the {what} is edited there after it is written")


_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class HereDocumentMember:
    """One `"key": value` of an object; positions are of the value."""

    key: str
    key_start: int
    start: int
    end: int


def members(text: str, start: int) -> list[HereDocumentMember]:
    """The members of the object whose `{` stands at `start`. LineError where it is not JSON."""
    found: list[HereDocumentMember] = []
    position = _skip(text, start + 1)
    while not text.startswith("}", position):
        if found:
            position = _expect(text, position, ",")
        key, end = _value(text, position)
        if not isinstance(key, str):
            raise LineError(f"a key is {key!r}")
        value_start = _expect(text, _skip(text, end), ":")
        _, value_end = _value(text, value_start)
        found.append(HereDocumentMember(key=key, key_start=position, start=value_start, end=value_end))
        position = _skip(text, value_end)
    return found


def _value(text: str, position: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise LineError(f"line {error.lineno} is not JSON: {error.msg}") from error


def _skip(text: str, position: int) -> int:
    while text.startswith((" ", "\t", "\n"), position):
        position += 1
    return position


def _expect(text: str, position: int, mark: str) -> int:
    if not text.startswith(mark, position):
        line = text.count("\n", 0, position) + 1
        raise LineError(f"line {line} is not JSON: a {mark!r} is missing")
    return _skip(text, position + 1)
