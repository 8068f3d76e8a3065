"""What a script gives its trainer, as far as it can be known without running it; and what can't be."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from sentinel.jobscript.arguments import Moment, Reached, ScriptReading, read
from sentinel.jobscript.directives import directive
from sentinel.jobscript.here_documents import JSON_OPTIONS, Fill, filled_json
from sentinel.jobscript.syntax import parse
from sentinel.jobscript.trainer import refuse_other_ways_to_set, refuse_unsure, trainers
from sentinel.jobscript.training_yaml import yaml_options, yaml_words
from sentinel.vocabulary.errors import LineError, ScriptRefused
from sentinel.vocabulary.numbers import load_object

T = TypeVar("T")
_OPTION = re.compile(r"--?[A-Za-z]")
_NAME = re.compile(r"--?[A-Za-z][\w-]*")  # Of an option, without an expansion in it
_DIRECTIVES = ("--gpus-per-node", "--gres", "--job-name", "--nodes", "--ntasks-per-node", "--time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Something that the script does not show."""

    what: str  # The option, or what else it is
    why: str
    line: int | None = None  # Counted from 1; None where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option with the words after it, up to the next option."""

    flag: str
    values: tuple[str, ...]
    unread: Unread | None = None  # Set where its values, or whether it is given at all, can't be known

    @property
    def value(self) -> str | None:
        """Its first value; None where it has none that can be read."""
        return self.values[0] if self.values and self.unread is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the trainer gets from a script, a command line or a log."""

    program: str  # Its file's or module's name, as `pretrain_gpt.py`
    options: tuple[Option, ...]  # In the order in which argparse reads them
    launcher: tuple[Option, ...] = ()  # Options of what starts the trainer: torchrun, srun
    directives: Mapping[str, str] = field(default_factory=dict)  # sbatch's options in the script, by their long names
    deepspeed: Mapping[str, Any] | None = None  # The DeepSpeed JSON that the script writes; null: can't be known
    unread: tuple[Unread, ...] = ()  # What is not any option's
    complete: bool = True  # Whether there are no further options that can't be seen

    def option(self, flag: str, spelled: Callable[[str], str] = str) -> Option | None:
        """The last one of that name, which argparse goes by; None where it is not given."""
        return next((option for option in reversed(self.options) if spelled(option.flag) == flag), None)


@lru_cache(maxsize=8)  # a decision asks for the same script's options a dozen times
def given(text: str) -> Given:
    """What a job script gives its trainer. ScriptRefused where it is not bash, or starts no trainer."""
    script = parse(text)
    reading = read(script)
    launch, *others = trainers(reading)
    unread: list[Unread] = []
    options = (*_of_yaml(reading, unread), *_options((_text(reading, word) for word in launch.arguments), unread))
    complete = not unread
    for other in others:
        line = script.line(other.command.node.start_byte)
        unread.append(Unread(what="another start of the trainer", why="only the first one is looked at", line=line))
    return Given(
        program=launch.program,
        options=options,
        launcher=tuple(_options((_text(reading, word) for word in launch.starting), [])),
        directives={flag: value for flag in _DIRECTIVES if (value := directive(script, flag)) is not None},
        deepspeed=_deepspeed(reading, options, unread),
        unread=tuple(unread),
        complete=complete,
    )


def options_of(words: Sequence[str]) -> tuple[Option, ...]:
    """The options among words that no shell reads any more."""
    return tuple(_options(((word, None) for word in words), []))


def _options(words: Iterable[tuple[str | None, Unread | None]], unread: list[Unread]) -> Iterator[Option]:
    """The options among the words. A word that is unknown and no option's value is added to `unread`."""
    flag, why = "", None
    values: tuple[str, ...] = ()
    for text, unknown in words:
        if text is not None and _OPTION.match(text):
            if flag:
                yield Option(flag=flag, values=values, unread=why)
            flag, joined, value = text.partition("=")
            values, why = (value,) if joined else (), unknown and replace(unknown, what=flag)
        elif unknown is None:
            values = (*values, text or "")
        elif flag and not values:
            values, why = (text or "",), unknown and replace(unknown, what=flag)
        else:
            unread.append(unknown)
    if flag:
        yield Option(flag=flag, values=values, unread=why)


def _of_yaml(reading: ScriptReading, unread: list[Unread]) -> Iterator[Option]:
    """The options that a YAML file holds, before the command's own, which count; said, where it can't be read."""
    words, what = yaml_words(reading), "the trainer's YAML"
    line = reading.script.line(words[0].word.start) if words else None
    missing = f"{words[0].word.raw} is not at hand" if words else None
    found = _document(reading, what, unread, lambda fill: yaml_options(reading, fill), missing, line)
    return (Option(flag=flag, values=values) for flag, values in (found or {}).items())


def _document(
    reading: ScriptReading,
    what: str,
    unread: list[Unread],
    take: Callable[[Fill], T | None],
    missing: str | None,
    line: int | None = None,
) -> T | None:
    """What `take` reads of a document of the script. What is unknown in it is said; `missing`, where there is none."""

    def leave(why: str, line: int | None) -> None:
        unread.append(Unread(what=what, why=why, line=line))

    def fill(raw: str, start: int) -> str:
        try:
            return text_of(reading, raw, (start, start))
        except Unknown as unknown:
            leave(str(unknown), reading.script.line(start))
            return "null"

    try:
        if (found := take(fill)) is None and missing is not None:
            leave(missing, line)
        return found
    except ScriptRefused as refused:
        leave(refused.reason, refused.line_number)
    except LineError as error:
        leave(str(error), line)
    return None


def _text(reading: ScriptReading, reached: Reached) -> tuple[str | None, Unread | None]:
    """What the trainer gets for a word, and what is unsure about it. A word may be both: given only sometimes."""
    word, line = reached.word, reading.script.line(reached.word.start)
    try:
        refuse_unsure(reading, reached)
    except ScriptRefused as refused:
        unsure = Unread(what=word.raw, why=refused.reason, line=refused.line_number)
        return word.shown, unsure
    if word.text is not None and not _calculates(reading, reached):
        return word.text, None
    flag, joined, value = word.raw.partition("=")
    named = joined and _NAME.fullmatch(flag)
    try:
        if word.text is not None:
            return text_of(reading, f"${reached.written.variable}", reached.path[-2].moment), None
        if named:
            return f"{flag}={text_of(reading, value, reached.written.moment)}", None
        return text_of(reading, word.raw, reached.written.moment), None
    except Unknown as unknown:
        unsure = Unread(what=word.raw, why=str(unknown), line=line)
        return (word.raw if named else None), unsure


def _calculates(reading: ScriptReading, reached: Reached) -> bool:
    """Whether the word is what a `declare -i` is given, which the shell calculates."""
    held = reading.assignments.get(reached.written.variable, ()) if len(reached.path) > 1 else ()
    return any(a.integer and a.written == reached.written for a in held)


def _deepspeed(reading: ScriptReading, options: Sequence[Option], unread: list[Unread]) -> Mapping[str, Any] | None:
    """The JSON that a here-document writes, filled in; None, and said, where there is none or it can't be read."""
    named = next((option for option in options if option.flag in JSON_OPTIONS), None)
    missing = None if named is None else f"it is in {' '.join(named.values) or 'a file'}: lint that file, too"

    def json_of(fill: Fill) -> Mapping[str, Any] | None:
        return None if (text := filled_json(reading, fill)) is None else load_object(text)

    return _document(reading, "the DeepSpeed JSON", unread, json_of, missing)


_WHOLE = re.compile(r"\$(?:(?P<name>\w+)|\{(?P<braced>\w+)\}|\{(?P<defaulted>\w+):?[-=](?P<default>[^{}]*)\})")
_SUM = re.compile(r"\$\(\((?P<sum>.*)\)\)", re.DOTALL)
_PRINTED = re.compile(
    r"""\$\(\s*(?:perl\s+-l?e|python[\d.]*\s+-c)\s+(?P<quote>["'])\s*print\b(?P<sum>[^"']*?);?\s*(?P=quote)\s*\)""",
    re.DOTALL,
)
# What Slurm sets from a directive.
_OF_SLURM = {"SLURM_NNODES": "--nodes", "SLURM_JOB_NUM_NODES": "--nodes", "SLURM_JOB_NAME": "--job-name"}
_LONGEST_SUM = 200
_DEEPEST = 20


class Unknown(Exception):  # noqa: N818 - reads as what it says; the reader of arguments says it and goes on
    """A value that the script does not show. Its text says why."""


def text_of(reading: ScriptReading, raw: str, moment: Moment, depth: int = 0) -> str:
    """The text that a word, as it is written, comes to at this moment. Unknown where the script does not show it."""
    if depth > _DEEPEST:
        raise Unknown(f"{raw} leads back to itself")
    written = raw[1:-1] if len(raw) > 1 and raw[0] == raw[-1] == '"' else raw

    def inner(found: re.Match[str]) -> str:
        return _variable(reading, found, moment, depth)

    if (found := _SUM.fullmatch(written)) is not None:  # inside `$((…))` variables may stand without a `$`
        dollars = re.sub(r"(?<![\w${.])([A-Za-z_]\w*)", r"${\1}", found["sum"])
        return _calculated(_WHOLE.sub(inner, dollars), whole=True)
    if (found := _PRINTED.fullmatch(written)) is not None:
        code = found["sum"] if found["quote"] == "'" else _WHOLE.sub(inner, found["sum"])
        return _calculated(code, whole=False)
    text = _WHOLE.sub(inner, written)
    if re.search(r"[$`]", text):
        raise Unknown(f"{raw} is not calculated here")
    return text


def _variable(reading: ScriptReading, found: re.Match[str], moment: Moment, depth: int) -> str:
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
        raise Unknown(f"${name} is set in lines {reading.script.lines(a.start for a in assignments)}")
    only = assignments[0]
    if only.written.conditions or only.written.kind == "array":
        raise Unknown(f"${name} is a list, or set only if a condition holds")
    if only.value is None or not only.written.words:
        return found["default"] or ""
    words = only.written.words
    text = " ".join(
        text_of(reading, w.raw, only.written.moment, depth + 1) if w.text is None else w.text for w in words
    )
    return _calculated(text, whole=True) if only.integer else text


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _calculated(code: str, *, whole: bool) -> str:
    """A sum of numbers with + - * / and brackets; the shell's own are whole numbers, and divide towards zero."""
    stripped = code.strip().rstrip(";").strip()
    try:
        if len(stripped) > _LONGEST_SUM or re.search(r"(?<![\d_.])0\d" + r"|[._]" * whole, stripped):
            raise ValueError(stripped)
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
