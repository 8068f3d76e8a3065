"""What a script gives its trainer, as far as it can be known without running it; and what can't be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sentinel.jobscript.arguments import Reached, Reading, read
from sentinel.jobscript.directives import directive
from sentinel.jobscript.here_documents import filled_json
from sentinel.jobscript.surety import refuse_unsure
from sentinel.jobscript.syntax import parse
from sentinel.jobscript.trainer import Launch, trainers
from sentinel.jobscript.values import Unknown, text_of
from sentinel.vocabulary.errors import LineError, ScriptRefused
from sentinel.vocabulary.numbers import load_object

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the trainer gets from a script, a command line or a log."""

    program: str  # Its file's or module's name, as `pretrain_gpt.py`
    options: tuple[Option, ...]  # In the order in which argparse reads them
    launcher: tuple[Option, ...] = ()  # Options of what starts the trainer: torchrun, srun
    directives: Mapping[str, str] = field(default_factory=dict)  # sbatch's options in the script, by their long names
    deepspeed: Mapping[str, Any] | None = None
    """The DeepSpeed JSON, where the script writes it; null for what can't be known in it."""

    unread: tuple[Unread, ...] = ()  # What is not any option's
    complete: bool = True  # Whether there are no further options that can't be seen


@lru_cache(maxsize=8)  # a decision asks for the same script's options a dozen times
def given(text: str) -> Given:
    """What a job script gives its trainer. ScriptRefused where it is not bash, or starts no trainer."""
    script = parse(text)
    reading = read(script)
    launch, *others = trainers(reading)
    unread: list[Unread] = []
    options = tuple(_options(reading, launch.arguments, unread))
    complete = not unread
    for other in others:
        line = script.line(other.command.node.start_byte)
        unread.append(Unread(what="another start of the trainer", why="only the first one is looked at", line=line))
    launcher = tuple(_options(reading, _launcher_words(launch), []))
    return Given(
        program=launch.program,
        options=options,
        launcher=launcher,
        directives={flag: value for flag in _DIRECTIVES if (value := directive(script, flag)) is not None},
        deepspeed=_deepspeed(reading, options, unread),
        unread=tuple(unread),
        complete=complete,
    )


def options_of(words: Sequence[str]) -> tuple[Option, ...]:
    """The options among words that no shell reads any more."""
    found: list[Option] = []
    for word in words:
        if _is_option(word):
            flag, joined, value = word.partition("=")
            found.append(Option(flag=flag, values=(value,) if joined else ()))
        elif found:
            found[-1] = Option(flag=found[-1].flag, values=(*found[-1].values, word))
    return tuple(found)


def _is_option(text: str) -> bool:
    return re.match(r"--?[A-Za-z]", text) is not None


def _launcher_words(launch: Launch) -> list[Reached]:
    words = list(launch.command.words)
    if launch.arguments:
        first = next((i for i, word in enumerate(words) if word is launch.arguments[0]), len(words))
        words = words[:first]
    return words


def _options(reading: Reading, words: Sequence[Reached], unread: list[Unread]) -> Iterator[Option]:
    """The options among the words. A word that is unknown and no option's value is added to `unread`."""
    flag, why = "", None
    values: tuple[str, ...] = ()
    for reached in words:
        text, unknown = _text(reading, reached)
        if text is not None and _is_option(text):
            if flag:
                yield Option(flag=flag, values=values, unread=why)
            flag, joined, value = text.partition("=")
            values, why = (value,) if joined else (), _named(unknown, flag)
        elif unknown is None:
            values = (*values, text or "")
        elif flag and not values:
            values, why = (text or "",), _named(unknown, flag)
        else:
            unread.append(unknown)
    if flag:
        yield Option(flag=flag, values=values, unread=why)


def _named(unknown: Unread | None, flag: str) -> Unread | None:
    return None if unknown is None else Unread(what=flag, why=unknown.why, line=unknown.line)


def _text(reading: Reading, reached: Reached) -> tuple[str | None, Unread | None]:
    """What the trainer gets for a word, and what is unsure about it. A word may be both: given only sometimes."""
    word, line = reached.word, reading.script.line(reached.word.start)
    try:
        refuse_unsure(reading, reached)
    except ScriptRefused as refused:
        unsure = Unread(what=word.raw, why=refused.reason, line=refused.line_number)
        return (word.text if word.text is not None else word.raw), unsure
    if word.text is not None and not _calculates(reading, reached):
        return word.text, None
    flag, joined, value = word.raw.partition("=")
    try:
        if word.text is not None:
            return text_of(reading, f"${reached.written.variable}", reached.path[-2].moment), None
        if joined and _is_option(flag):
            return f"{flag}={text_of(reading, value, reached.written.moment)}", None
        return text_of(reading, word.raw, reached.written.moment), None
    except Unknown as unknown:
        unsure = Unread(what=word.raw, why=str(unknown), line=line)
        return (word.raw if joined and _is_option(flag) else None), unsure


def _calculates(reading: Reading, reached: Reached) -> bool:
    """Whether the word is what a `declare -i` is given, which the shell calculates."""
    written = reached.written
    return len(reached.path) > 1 and any(
        a.integer and a.written == written for a in reading.assignments.get(written.variable, ())
    )


def _deepspeed(reading: Reading, options: Sequence[Option], unread: list[Unread]) -> Mapping[str, Any] | None:
    """The JSON that a here-document writes, filled in; None, and said, where there is none or it can't be read."""

    def fill(raw: str, start: int) -> str:
        try:
            return text_of(reading, raw, (start, start))
        except Unknown as unknown:
            unread.append(Unread(what="the DeepSpeed JSON", why=str(unknown), line=reading.script.line(start)))
            return "null"

    named = next((o for o in options if o.flag in ("--deepspeed_config", "--deepspeed-config")), None)
    try:
        text = filled_json(reading, fill)
        if text is not None:
            return load_object(text)
    except ScriptRefused as refused:
        unread.append(Unread(what="the DeepSpeed JSON", why=refused.reason, line=refused.line_number))
    except LineError as error:
        unread.append(Unread(what="the DeepSpeed JSON", why=str(error)))
    else:
        if named is not None:
            where = " ".join(named.values) or "a file"
            unread.append(Unread(what="the DeepSpeed JSON", why=f"it is in {where}: lint that file, too"))
    return None
