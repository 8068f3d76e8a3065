"""Setting and removing options among the trainer's arguments, and setting a variable of the script."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from sentinel.jobscript.arguments import ArgumentList, Assignment, Reached, ScriptReading
from sentinel.jobscript.change import Edit, RemoveOption, SetOption, SetVariable, is_plain, why_not_written
from sentinel.jobscript.syntax import climb, only_calculates, source_of
from sentinel.jobscript.trainer import (
    Launch,
    refuse_other_ways_to_set,
    refuse_unfollowed_mentions,
    refuse_unsure,
    trainers,
)
from sentinel.jobscript.words import Word
from sentinel.vocabulary.errors import ScriptRefused

# A substitution in a word that holds more than it: not looked into.
_PASTED_SUBSTITUTION = re.compile(r"`|\$\(|\$\{\w+:?[=?]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """An option where it is written, with the words after it that are its values."""

    at: Reached
    values: tuple[Word, ...]  # Of `--flag=value` this word itself


def set_option(reading: ScriptReading, change: SetOption) -> tuple[Edit, ...]:
    """The edit that gives the trainer this option with this value.

    A value that comes from a variable or a calculation is replaced where it is used: the variable may also be part
    of a path. An option that is given twice in one list is changed where it stands last, as argparse reads it.
    """
    launches = trainers(reading)
    refuse_unfollowed_mentions(reading, change.flag)
    found = [(launch, _occurrences(reading, launch, change.flag)) for launch in launches]
    if not any(occurrences for _, occurrences in found):
        return (_insertion(reading, launches, change),)
    for launch, occurrences in found:
        if not occurrences:
            reason = f"this start of the trainer does not get {change.flag}, another one does"
            raise reading.script.refusal(launch.command.node.start_byte, reason)
    by_place = {each.at.word.start: each for _, occurrences in found for each in occurrences}
    if len({each.at.written.start for each in by_place.values()}) > 1:
        by_line = {reading.script.line(start): start for start in sorted(by_place)}
        raise reading.script.unclear(f"{change.flag} is in two lists of arguments,", list(by_line.values()))
    occurrence = by_place[max(by_place)]
    refuse_unsure(reading, occurrence.at)
    return _replacement(reading, occurrence, change, launches)


def remove_option(reading: ScriptReading, change: RemoveOption) -> tuple[Edit, ...]:
    """The edits that take the option and its values out of the trainer's arguments; none where it is not there."""
    launches = trainers(reading)
    refuse_unfollowed_mentions(reading, change.flag)
    edits: dict[int, Edit] = {}
    for launch in launches:
        for occurrence in _occurrences(reading, launch, change.flag):
            refuse_unsure(reading, occurrence.at)
            edits[occurrence.at.word.start] = _removal(reading, occurrence, change)
    return tuple(edits.values())


def _occurrences(reading: ScriptReading, launch: Launch, flag: str) -> list[Occurrence]:
    return [_occurrence(reading, reached) for reached in launch.arguments if reached.word.flag == flag]


def _occurrence(reading: ScriptReading, at: Reached) -> Occurrence:
    words = at.written.words
    place = next(index for index, word in enumerate(words) if word.start == at.word.start)
    if "=" in at.word.raw:
        return Occurrence(at=at, values=(at.word,))
    values: list[Word] = []
    for word in words[place + 1 :]:
        if word.is_option or not _is_value(reading, word, at) or (values and word.variable):
            break
        values.append(word)
    return Occurrence(at=at, values=tuple(values))


def _is_value(reading: ScriptReading, word: Word, at: Reached) -> bool:
    """Whether a word after an option is a value of it, and not a list of further options or the end of a command."""
    if at.reparsed and re.match(r"\d*[<>|&;]", word.raw):
        return False
    held = reading.set_before(word.variable, at.written.moment)
    inside = [first for assignment in held for first in assignment.written.words]
    if word.splice == "quoted elements" or any(first.is_option for first in inside):
        return False
    if len(inside) > len(held):
        raise reading.script.refusal(word.start, f"${word.variable} after {at.word.flag} holds more than one word")
    return True


def _replacement(
    reading: ScriptReading, occurrence: Occurrence, change: SetOption, launches: tuple[Launch, ...]
) -> tuple[Edit, ...]:
    line, given = reading.script.line(occurrence.at.word.start), len(occurrence.values)
    if change.value is None:
        if given:
            raise ScriptRefused(line, f"{change.flag} has a value there, and should be a switch")
        return ()
    if given != 1:
        several = f"has {given} values" if given else "has no value to replace in its list of arguments"
        raise ScriptRefused(line, f"{change.flag} {several}")
    if why := why_not_written(change.value, occurrence.at, launches):
        raise ScriptRefused(line, why)
    (word,) = occurrence.values
    before = f"{change.flag}=" if word is occurrence.at.word else ""
    _refuse_side_effects(reading, word)
    if word.text == before + change.value:
        return ()
    return (Edit(start=word.start, end=word.end, new=before + shlex.quote(change.value)),)


def _refuse_side_effects(reading: ScriptReading, value: Word) -> None:
    pure = only_calculates(value.value) if value.value is not None else not _PASTED_SUBSTITUTION.search(value.raw)
    if not pure and value.text is None:
        reason = "the value there is made by a substitution that may do more than calculate"
        raise reading.script.refusal(value.start, reason)


def _removal(reading: ScriptReading, occurrence: Occurrence, change: RemoveOption) -> Edit:
    script, at = reading.script, occurrence.at
    wanted = len(occurrence.values) if change.values is None else change.values
    if wanted > len(occurrence.values):
        raise script.refusal(at.word.start, f"{change.flag} has {len(occurrence.values)} values there, not {wanted}")
    removed = [at.word, *occurrence.values[:wanted]]
    for word in removed:
        _refuse_side_effects(reading, word)
    end = removed[-1].end
    if b"#" in script.source[at.word.start : end] and at.written.kind == "array":
        raise script.refusal(at.word.start, f"a comment is between {change.flag} and its values")
    return _with_its_blanks(script.source, at.written, at.word.start, end)


def _with_its_blanks(source: bytes, written_in: ArgumentList, start: int, end: int) -> Edit:
    """The removal of these bytes: the whole line where nothing else stands on it, else with the blanks before them."""
    line_start = source.rfind(b"\n", 0, start) + 1
    line_end = source.find(b"\n", end)
    rest = source[end:line_end].strip() if line_end >= 0 else b"-"
    continued = rest == b"\\" or (not rest and written_in.kind != "command")
    alone = not source[line_start:start].strip() and continued
    if alone and written_in.start < line_start and line_end < written_in.end:
        return Edit(start=line_start, end=line_end + 1, new="")
    while source[start - 1 : start] in (b" ", b"\t") and source[end : end + 1].isspace() and start > line_start:
        start -= 1
    return Edit(start=start, end=end, new="")


def _insertion(reading: ScriptReading, launches: tuple[Launch, ...], change: SetOption) -> Edit:
    """The option in front of the last one that every launch gets for sure. What stands between can't be its value."""
    shared = set.intersection(*({reached.word.start for reached in launch.arguments} for launch in launches))
    refusal: ScriptRefused | None = None
    for reached in reversed(launches[-1].arguments):
        if reached.word.start not in shared or not re.match(r"--[A-Za-z]", reached.word.text or ""):
            continue
        try:
            refuse_unsure(reading, reached)
        except ScriptRefused as error:
            refusal = refusal or error
        else:
            if reached.written.kind != "bare":
                return _inserted(reading, launches, change, reached)
    line = reading.script.line(launches[-1].command.node.start_byte)
    why = "" if refusal is None else f" (line {refusal.line_number}: {refusal.reason})"
    raise ScriptRefused(line, f"the trainer gets no option beside which {change.flag} could be added{why}")


def _inserted(reading: ScriptReading, launches: tuple[Launch, ...], change: SetOption, beside: Reached) -> Edit:
    source, start = reading.script.source, beside.word.start
    words = change.flag
    if change.value is not None:
        if why := why_not_written(change.value, beside, launches):
            raise reading.script.refusal(start, why)
        words = f"{change.flag} {shlex.quote(change.value)}"
    line_start = source.rfind(b"\n", 0, start) + 1
    indent = source[line_start:start]
    own_line = not indent.strip() and beside.written.start < line_start
    gap = " "
    if own_line and source[: line_start - 1].endswith(b"\\"):
        gap = f" \\\n{indent.decode()}"
    elif own_line and beside.written.kind != "command":
        gap = f"\n{indent.decode()}"
    return Edit(start=start, end=start, new=f"{words}{gap}")


def refuse_more_than_asked(before: ScriptReading, after: ScriptReading, change: SetOption | RemoveOption) -> None:
    """ScriptRefused where a rewritten script would give any command other words than before, but for this option."""
    if _without(before, change.flag) != _without(after, change.flag):
        raise ScriptRefused(None, f"with {change.flag} changed, other arguments would change, too")
    kept = any(reached.word.flag == change.flag for launch in trainers(after) for reached in launch.arguments)
    if kept != isinstance(change, SetOption):
        raise ScriptRefused(None, f"{change.flag} could not be changed")


def _without(reading: ScriptReading, flag: str) -> list[list[str]]:
    """What each command gets, word for word as it is written, without the option and what follows it as its values."""
    skipped = {
        span
        for launch in trainers(reading)
        for occurrence in _occurrences(reading, launch, flag)
        for span in [occurrence.at.word.start, *(value.start for value in occurrence.values)]
    }
    return [
        [r.word.raw for r in command.words if skipped.isdisjoint(word.start for word in (*r.uses, r.word))]
        for command in reading.commands
        if not any(above.type == "command_substitution" for _, above in climb(reading.script, command.node))
    ]


def set_variable(reading: ScriptReading, change: SetVariable) -> tuple[Edit, ...]:
    """The edit that gives the variable's one assignment this value; the variable's other uses follow it."""
    assignment = _only_assignment(reading, change.name)
    line = reading.script.line(assignment.start)
    if assignment.appends or assignment.written.kind == "array":
        raise ScriptRefused(line, f"${change.name} holds a list there, not one value")
    if not is_plain(change.value):
        why = f"and what ${change.name} is used for can't be followed"
        raise ScriptRefused(line, f"the value {change.value!r} is not one plain word, {why}")
    if assignment.integer and not re.fullmatch(r"-?\d+", change.value):
        raise ScriptRefused(line, f"${change.name} is declared a whole number, which {change.value!r} is not")
    value = assignment.value
    if value is None:
        return (Edit(start=assignment.written.end, end=assignment.written.end, new=change.value),)
    if not only_calculates(value):
        raise ScriptRefused(line, f"${change.name} is made by a substitution that may do more than calculate")
    words, unquoted = assignment.written.words, source_of(value).strip(b"\"'")
    if len(words) == 1 and words[0].text == change.value and len(unquoted) == len(words[0].raw.strip("\"'").encode()):
        return ()  # it has this very value, blanks inside its quotes included
    quote = chr(value.text[0]) if value.text and value.type in ("string", "raw_string") else ""
    return (Edit(start=value.start_byte, end=value.end_byte, new=f"{quote}{change.value}{quote}"),)


def _only_assignment(reading: ScriptReading, name: str) -> Assignment:
    """The one place that sets a variable. ScriptRefused, naming the lines, where there is none or more than one."""
    script = reading.script
    refuse_other_ways_to_set(reading, name)
    found = reading.assignments.get(name, ())
    if not found:
        raise ScriptRefused(None, f"${name} is not set in it")
    if len(found) > 1:
        raise script.unclear(f"${name} is set", [assignment.start for assignment in found])
    if found[0].one_command or found[0].written.conditions:
        raise script.refusal(found[0].start, f"${name} is set there for one command only, or only if a condition holds")
    return found[0]
