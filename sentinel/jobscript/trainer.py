"""Which commands of a script start the trainer, which words are the trainer's own, and whether they surely reach it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from sentinel.jobscript.arguments import ArgumentList, Reached, ScriptCommand, ScriptReading
from sentinel.jobscript.syntax import Script, climb, code_of, conditions, source_of, to_bytes
from sentinel.vocabulary.errors import ScriptRefused

# A Python program that gets one of these is a trainer, where a script starts more than one program.
_TRAINING_OPTION = re.compile(
    r"--(deepspeed_config|(global|micro)-batch-size|lr|train-(iters|samples|tokens)"
    r"|learning[-_]rate|max[-_]grad[-_]norm|per[-_]device[-_]train[-_]batch[-_]size)(=|\Z)"
)
# Modules after `python -m` that start the program named after them.
_LAUNCHERS = frozenset(["torch.distributed.launch", "torch.distributed.run", "deepspeed.launcher.runner"])
# Commands that train without a program of their own being named, and the words after them that say so.
_TRAINING_COMMANDS = {
    **dict.fromkeys(("axolotl", "llamafactory-cli", "lmf"), ("train",)),
    "trl": ("dpo", "grpo", "kto", "reward", "rloo", "sft"),
}
_TRAINING_PROGRAMS = frozenset(["axolotl.cli.train", *_TRAINING_COMMANDS])
# Commands that only show or edit text: what they are given does not run.
_TELLERS = frozenset(["awk", "cat", "echo", "egrep", "grep", "logger", "perl", "printf", "sed"])
# Commands that may make code or arguments of what they are given; and those whose name is not written out.
_INTERPRETER = re.compile(r"alias|bash|eval|mapfile|read|readarray|sbatch|set|sh|source|ssh|trap|xargs|\.|")
# A variable that is used under a name which is itself a value.
_BY_NAME = re.compile(rb"\$\{!|(?:declare|local|typeset)\s+-\w*n")
_BREAKS = re.compile(rb"(?<!\\)\n")
_ENDS_A_COMMAND = re.compile(r"[;|]|&&|(?<![<>])&(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command that starts a Python program, the program's name, and the words after it."""

    command: ScriptCommand
    program: str
    starting: tuple[Reached, ...]  # The words before those; the last of them names the program
    arguments: tuple[Reached, ...]


def trainers(reading: ScriptReading) -> tuple[Launch, ...]:
    """The launches of the trainer, at least one. ScriptRefused where there is none, or the trainer can't be told."""
    launches = tuple(_launches(reading))
    training = [one for one in launches if _trains(one.arguments) or one.program in _TRAINING_PROGRAMS]
    trained = {launch.program for launch in training}
    training += [one for one in launches if one.program in trained and one not in training]
    if training or len({launch.program for launch in launches}) == 1:
        return tuple(training) or launches
    for command in reading.commands:
        if command.name not in _TELLERS and _trains(command.words):
            raise reading.script.refusal(
                command.node.start_byte, "no word that ends in .py tells its launcher's options from the trainer's"
            )
    if not launches:
        raise ScriptRefused(None, "no command in it starts a Python program")
    starts = [launch.command.node.start_byte for launch in launches]
    lines = reading.script.lines(starts)
    raise reading.script.refusal(
        starts[-1], f"the programs started in lines {lines} look alike: none gets an option of a trainer"
    )


def refuse_conditional(reading: ScriptReading, node: Node, start: int, what: str) -> None:
    """ScriptRefused where the trainer may start without the document having been written."""
    around = conditions(reading.script, node)
    if any(conditions(reading.script, one.command.node)[: len(around)] != around for one in trainers(reading)):
        raise reading.script.refusal(start, f"the {what} there is written only if a condition holds")


def refuse_unfollowed_mentions(reading: ScriptReading, flag: str) -> None:
    """ScriptRefused where the flag stands, outside comments, in a place from which it might reach the trainer unseen.

    Followed are: the words of commands and what is spliced into them; lists that nothing uses. Harmless are commands
    that only show text, and other programs' own options. All else (a function's arguments, a here-document, `set --`,
    a value that a substitution makes) may bring the flag to the trainer, or not.
    """
    script = reading.script
    comments = ((node.start_byte, node.end_byte) for node in script.nodes() if node.type == "comment")
    followed = [*_followed(reading, flag), *_unused(reading), *comments]
    for found in re.finditer(rb"(?<!\w)" + re.escape(to_bytes(flag)) + rb"(?![\w-])", script.source):
        if not any(start <= found.start() and found.end() <= end for start, end in followed):
            raise script.refusal(found.start(), f"{flag} is given where its way to the trainer can't be followed")


def _launches(reading: ScriptReading) -> Iterator[Launch]:
    for command in reading.commands:
        if command.name in _TELLERS or command.name in reading.functions:
            continue
        words = _until_the_command_ends(command.words)
        place = _program(words)
        if place is not None:
            program = words[place].word.raw.strip("\"'").rpartition("/")[2]
            _, *arguments = _on_its_line(reading, words[place:])
            starting = tuple(words[: place + 1])
            yield Launch(command=command, program=program, starting=starting, arguments=tuple(arguments))


def _on_its_line(reading: ScriptReading, words: Sequence[Reached]) -> Sequence[Reached]:
    """The words up to a line break that no backslash continues, where a second shell reads them as code; or up to a
    variable that the script sets in a way that is not followed, which may hold one."""
    for index in range(1, len(words)):
        if not words[index].reparsed:
            continue
        at = words[index].word
        gaps = [*_between(reading.script, *words[index - 1 : index + 1]), to_bytes(at.raw)]
        if any(map(_BREAKS.search, gaps)) or at.variable in reading.assignments:
            return words[:index]
    return words


def _between(script: Script, one: Reached, other: Reached) -> Iterator[bytes]:
    """What stands between two neighbouring words, in each list that one of them came through."""
    left, right = ([*zip(at.path, (*at.uses, at.word), strict=True)] for at in (one, other))
    while left and right and left[0] == right[0]:
        left, right = left[1:], right[1:]
    if left and right and left[0][0] == right[0][0]:
        (_, before), (_, after) = left.pop(0), right.pop(0)
        yield script.source[before.end : after.start]
    yield from (script.source[word.end : written.end] for written, word in left)
    yield from (script.source[written.start : word.start] for written, word in right)


def _until_the_command_ends(words: Sequence[Reached]) -> Sequence[Reached]:
    """The words up to a `|`, `;` or `&` that a second shell would read; one inside a substitution ends nothing."""
    inside = 0
    for index, reached in enumerate(words):
        code = reached.word.unquoted
        if not reached.reparsed or reached.word.value is not None:
            continue
        if not inside and _ENDS_A_COMMAND.search(code):
            return words[:index]
        inside = max(0, inside + code.count("$(") - code.count(")"))
        inside = 1 - min(inside, 1) if code.count("`") % 2 else inside
    return words


def _program(words: Sequence[Reached]) -> int | None:
    """The place of the word that names the program: `…/train.py`, the module after `python -m`, or a command that
    trains by itself."""
    interpreted = False
    for index, reached in enumerate(words):
        raw = reached.word.raw.strip("\"'")
        following = words[index + 1].word.raw if index + 1 < len(words) else ""
        if raw.endswith(".py") or following in _TRAINING_COMMANDS.get(raw.rpartition("/")[2], ()):
            return index
        module = interpreted and words[index - 1].word.text in ("-m", "--module")
        if module and raw not in _LAUNCHERS:
            return index
        interpreted = interpreted or bool(re.fullmatch(r"(?:.*/)?(?:accelerate|python[\d.]*|torchrun|deepspeed)", raw))
    return None


def _trains(words: Sequence[Reached]) -> bool:
    return any(_TRAINING_OPTION.match(reached.word.text or "") for reached in words)


def _followed(reading: ScriptReading, flag: str) -> Iterator[tuple[int, int]]:
    launched = {one.command.node.id: (*one.starting, *one.arguments) for one in _launches(reading)}
    yield from only_told(reading, _TELLERS)
    for command in reading.commands:
        hands_on = _INTERPRETER.fullmatch(command.name) or command.name in {*_TELLERS, *reading.functions}
        if hands_on and command.node.id not in launched:
            continue
        for reached in launched.get(command.node.id, command.words):  # what comes after a line break is lost
            if reached.word.flag == flag:
                yield reached.word.start, reached.word.end


def only_told(reading: ScriptReading, tellers: Collection[str]) -> Iterator[tuple[int, int]]:
    """The commands of these names that show what they are given, and do nothing else with it."""
    for command in reading.commands:
        if command.name in tellers and _only_tells(reading.script, command.node):
            yield command.node.start_byte, command.node.end_byte


def _only_tells(script: Script, command: Node) -> bool:
    """Whether what the command shows ends on a screen or in a log: not in a substitution, a file or another shell."""
    for _, above in climb(script, command):
        if above.type in ("command_substitution", "process_substitution"):
            return False
        if above.type == "redirected_statement":
            return not any(child.type in ("file_redirect", "heredoc_redirect") for child in above.named_children)
        if above.type == "pipeline":
            last = code_of(above.named_children[-1]).split()
            return bool(last) and last[0] in {*_TELLERS, "tee"}
    return True


def _unused(reading: ScriptReading) -> Iterator[tuple[int, int]]:
    """Assignments that nothing in the script reads and that no other program is given."""
    if any(_BY_NAME.match(source_of(node)) for node in reading.script.nodes()):
        return
    for name, assignments in reading.assignments.items():
        uses = [n.start_byte for n in reading.script.nodes() if n.type == "variable_name" and code_of(n) == name]
        read = not all(any(a.start <= use < a.written.end for a in assignments) for use in uses)
        if not read and not _is_exported(reading.script, name):
            yield from ((a.start, a.written.end) for a in assignments if not a.one_command)


def _is_exported(script: Script, name: str) -> bool:
    exports = rb"(?:export\b|declare\s+-\w*x).*\b" + to_bytes(name) + rb"\b"
    ways = {"declaration_command": exports, "command": rb"set\s+-\w*a|set\s+-o\s+allexport"}
    return any(re.match(ways[n.type], source_of(n), re.DOTALL) for n in script.nodes() if n.type in ways)


# A backslash that is followed by blanks continues nothing.
_SPACED_CONTINUATION = re.compile(rb"\\[ \t]+\n")
_SETTERS = frozenset(["getopts", "let", "mapfile", "read", "readarray", "unset"])
_STRUCTURE = re.compile(r"[\"'`\\]|^#")


def refuse_unsure(reading: ScriptReading, at: Reached) -> None:
    """ScriptRefused, naming the line, where the word may not reach the trainer, or not as it is written."""
    for outer, inner in zip(at.path, at.path[1:], strict=False):
        line = reading.script.line(at.word.start if inner is at.written else inner.start)
        if outer.conditions[: len(inner.conditions)] != inner.conditions:
            raise ScriptRefused(line, f"${inner.variable} is set there only if a condition holds or a function runs")
        refuse_other_ways_to_set(reading, inner.variable)
        whole = [a for a in reading.assignments[inner.variable] if not a.appends and not a.one_command]
        if len(whole) > 1:
            raise reading.script.unclear(f"${inner.variable} is set", [a.start for a in whole])
    _refuse_broken(reading, at.written)
    # Inside a text that is read as code, only words whose quotes close in them are what they look like.
    for word in at.written.words if at.reparsed else ():
        if word.value is None and word.start <= at.word.end and _STRUCTURE.search(word.unquoted):
            reason = f"a second shell reads this list as code, with {word.raw} in it"
            raise reading.script.refusal(at.word.start, reason)


def refuse_other_ways_to_set(reading: ScriptReading, name: str) -> None:
    """ScriptRefused where a variable is also set by a loop, by `read` and its like, or by arithmetic."""
    script = reading.script
    for node in script.nodes():
        if _sets(node, name):
            raise script.refusal(node.start_byte, f"${name} is changed there, too")
    for command in reading.commands:
        texts = [reached.word.text or "" for reached in command.words[1:]]
        setter = command.name in _SETTERS or (command.name == "printf" and "-v" in texts)
        if setter and any(text == name or text.startswith((f"{name}=", f"{name}+", f"{name}-")) for text in texts):
            raise script.refusal(command.node.start_byte, f"${name} is changed there, too")


# How a node of each type sets the variable that stands in for NAME.
_SETTING = {
    "binary_expression": r"NAME\s*[-+*/%]?=(?!=)",
    "expansion": r"\$\{NAME:?=",
    "for_statement": r"(?:for|select)\s+NAME\b",
    "variable_assignment": r"NAME\[",
}


def _sets(node: Node, name: str) -> bool:
    """Whether this is a loop over the variable, `name[1]=…`, `unset`, `((name++))`, `((name = …))` or `${name:=…}`."""
    text = code_of(node)
    if node.type in _SETTING:
        return re.match(_SETTING[node.type].replace("NAME", name), text) is not None
    counts = node.type in ("postfix_expression", "unary_expression") and re.search(r"\+\+|--", text) is not None
    return (counts or node.type == "unset_command") and any(code_of(child) == name for child in node.named_children)


def _refuse_broken(reading: ScriptReading, written: ArgumentList) -> None:
    script = reading.script
    if found := _SPACED_CONTINUATION.search(script.source, written.start, written.end):
        raise script.refusal(found.start(), "blanks follow the backslash, so the line is not continued")
    for word in written.words:
        if word.raw == "\\" and written.kind != "command":
            raise script.refusal(word.start, "a backslash between quotes is an argument of its own")
        if word.raw.startswith("#"):
            raise script.refusal(word.start, "a # between quotes begins no comment")
    for assignment in reading.assignments.get("IFS", ()):
        if not assignment.one_command:
            raise script.refusal(assignment.start, "IFS changes how texts are split into words")
