"""Files that a script gives its trainer and does not write: put into the script as here-documents.

From then on the script holds all that its trainer gets, and a change of the file is a change of the script: the file
itself stays as it is, and the trainer is given the copy that the script writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from posixpath import join, normpath

from sentinel.jobscript.arguments import Reached, ScriptReading, read
from sentinel.jobscript.change import Edit, edited, is_plain
from sentinel.jobscript.given import Unknown, text_of
from sentinel.jobscript.here_documents import documents, json_words, names_of
from sentinel.jobscript.made_json import bare, writes
from sentinel.jobscript.syntax import climb, code_of, parse, to_bytes
from sentinel.jobscript.trainer import only_told, refuse_unsure, trainers
from sentinel.jobscript.training_yaml import yaml_words
from sentinel.vocabulary.errors import ScriptRefused

ARGUMENT_FILES = ("megatron/arguments.py", "megatron/training/arguments.py", "megatron/training/config/*.py")
"""Where the forks define their options, beside the script that is started."""


def named_files(text: str) -> dict[str, tuple[str, ...]]:
    """The trainer's YAML and its DeepSpeed JSON that the script only names: path, as the trainer gets it -> where it
    may lie, from the job's folder. None of a script that can't be read, or mentions such a file elsewhere: it might
    write it there."""
    try:
        reading = read(parse(text))
        return {path: where(reading, path) for path, _ in _named(reading)}
    except ScriptRefused:
        return {}


def with_files(text: str, files: Mapping[str, tuple[str, str]]) -> str:
    """The script with these files inside: path -> where the script is to write its copy, and the file's text. As it
    was where a copy's path can't stand in it."""
    for path, (copy, content) in files.items():
        reading = read(parse(text))
        named = [word for named, word in _named(reading) if named == path]
        at = _before_the_trainer(reading)
        if len(named) != 1 or at is None or not is_plain(copy) or "\0" in content:
            continue
        mark = "SENTINEL_COPY"
        while re.search(rf"^{mark}$", content, re.MULTILINE):
            mark += "_"
        end = "" if content.endswith("\n") or not content else "\n"
        document = f"cat > {copy} <<'{mark}'\n{content}{end}{mark}\n"
        text = edited(text, [Edit(*named[0], copy), Edit(at, at, document)])
    return text


def _named(reading: ScriptReading) -> Iterator[tuple[str, tuple[int, int]]]:
    """(path, as the trainer gets it; the bytes of the word's part that is the path) of each file."""
    if len(trainers(reading)) > 1:
        return  # it is not known which of them the changes are for
    for reached in (*yaml_words(reading), *json_words(reading)):
        names = names_of(reached)
        written = any(documents(reading, lambda path, _, names=names: bare(path) in names))  # type: ignore[misc]
        if written or writes(reading, names):
            continue
        try:
            refuse_unsure(reading, reached)
            flag, joined, _ = reached.word.raw.partition("=") if reached.word.raw.startswith("--") else ("", "", "")
            raw = reached.word.raw[len(flag) + len(joined) :]
            path = reached.word.text[len(flag) + len(joined) :] if reached.word.text is not None else ""
            path = path or text_of(reading, raw, reached.written.moment)
        except (ScriptRefused, Unknown):
            continue
        if not _mentioned_elsewhere(reading, reached, path):
            yield path, (reached.word.end - len(to_bytes(raw)), reached.word.end)


def _mentioned_elsewhere(reading: ScriptReading, reached: Reached, path: str) -> bool:
    """Whether the file, or the variable that names it, stands in a place that may write or move it."""
    script = reading.script
    allowed = [(reached.word.start, reached.word.end), *((use.start, use.end) for use in reached.uses)]
    allowed += [(node.start_byte, node.end_byte) for node in script.nodes() if node.type == "comment"]
    allowed += only_told(reading, ("cat", "echo", "grep", "ls", "printf"))
    base = re.escape(to_bytes(path.rpartition("/")[2]))
    variables = {
        step.variable for step in reached.path if step.variable and step.kind != "array" and len(step.words) == 1
    }
    uses = [node for node in script.nodes() if node.type == "variable_name" and code_of(node) in variables]
    assigned = [a.start for name in variables for a in reading.assignments.get(name, ())]
    places = [found.start() for found in re.finditer(rb"(?<![\w.-])" + base + rb"(?![\w-])", script.source)]
    places += [node.start_byte for node in uses if node.start_byte not in assigned]
    return any(not any(start <= place < end for start, end in allowed) for place in places)


def _before_the_trainer(reading: ScriptReading) -> int | None:
    """Where the line begins on which the script's own statement with the trainer in it begins; None where another one
    stands before it there."""
    script, command = reading.script, trainers(reading)[0].command.node
    whole = script.roots[0].id
    node = next((below for below, above in climb(script, command) if above.id == whole), command)
    start = script.source.rfind(b"\n", 0, node.start_byte) + 1
    return start if not script.source[start : node.start_byte].strip() else None


def program_paths(text: str) -> tuple[str, ...]:
    """Where the trainer of a job script may lie, from the folder that the job starts in: there, and in each folder that
    the script changes to. ScriptRefused where it starts no trainer."""
    reading = read(parse(re.sub(r"`pwd`|\$\(pwd\)|\$PWD\b|\$\{PWD\}", ".", text)))
    program = _text(reading, trainers(reading)[0].starting[-1])
    return () if program is None else where(reading, program)


def where(reading: ScriptReading, path: str) -> tuple[str, ...]:
    """Where a path of the trainer's may lie, from the folder that the job starts in."""
    changed_to = [c.words[1] for c in reading.commands if c.name == "cd" and len(c.words) == 2]
    folders = [".", *filter(None, (_text(reading, word) for word in changed_to))]
    return tuple(dict.fromkeys(normpath(join(folder, path)) for folder in folders))


def _text(reading: ScriptReading, reached: Reached) -> str | None:
    try:
        return text_of(reading, reached.word.raw, reached.written.moment)
    except Unknown:
        return None
