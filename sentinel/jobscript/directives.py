"""Reading and setting an `#SBATCH` line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sentinel.jobscript.change import Edit, SetDirective, is_plain
from sentinel.jobscript.syntax import Script
from sentinel.vocabulary.errors import ScriptRefused

# sbatch's options that have a short name, as its manual page lists them.
_SHORT = dict(
    re.findall(
        r"(--\S+) (-\w)",
        "--account -A --array -a --chdir -D --constraint -C --cpus-per-task -c --dependency -d --error -e --exclude -x "
        "--gpus -G --job-name -J --nodelist -w --nodes -N --ntasks -n --output -o --partition -p --qos -q --time -t",
    )
)
_WORD = re.compile(rb"[^\s\"'#]+|\"[^\"\n]*\"|'[^'\n]*'")
_DIRECTIVE = re.compile(rb"#SBATCH(?=[ \t]|$)(.*)")


def directive(script: Script, flag: str) -> str | None:
    """The value that sbatch reads: of the last line that has it. None where none has, or this can't be told."""
    try:
        found = list(_settings(script, flag))
    except ScriptRefused:
        return None
    return script.text(*found[-1]).strip("\"'") if found else None


def set_directive(script: Script, change: SetDirective) -> tuple[Edit, ...]:
    """The edit that makes sbatch read this value. Lines after the first command are comments to sbatch, and to us."""
    if not is_plain(change.value):
        raise ScriptRefused(None, f"the value {change.value!r} of {change.flag} is not one plain word")
    found = list(_settings(script, change.flag))
    if len(found) > 1:
        raise script.unclear(f"{change.flag} is set", [start for start, _ in found])
    if found:
        start, end = found[0]
        same = script.text(start, end).strip("\"'") == change.value
        return () if same else (Edit(start=start, end=end, new=change.value),)
    position = _after_the_last(script)
    return (Edit(start=position, end=position, new=f"#SBATCH {change.flag}={change.value}\n"),)


def _directives(script: Script) -> Iterator[re.Match[bytes]]:
    """The lines that sbatch reads: up to the first one that is neither blank nor a comment."""
    position = 0
    for line in script.source.splitlines(keepends=True):
        if line.strip() and not line.startswith(b"#"):
            return
        found = _DIRECTIVE.match(script.source, position, position + len(line.rstrip(b"\n")))
        if found is not None:
            if re.match(rb"\s*(?:hetjob|packjob)\b", found.group(1)):
                raise script.refusal(position, "a heterogeneous job has directives for each component")
            yield found
        position += len(line)


def _settings(script: Script, flag: str) -> Iterator[tuple[int, int]]:
    """Of each directive that has the option: where its value begins and ends."""
    long, short = flag.encode(), _SHORT.get(flag, "").encode()
    for directive in _directives(script):
        comment = re.compile(rb"\s#").search(script.source, *directive.span(1))
        stop = directive.end(1) if comment is None else comment.start()
        words = list(_WORD.finditer(script.source, directive.start(1), stop))
        for index, found in enumerate(words):
            if found.group().startswith(long + b"="):
                following = words[index + 1] if index + 1 < len(words) else found
                quoted = following.start() == found.end()  # a quoted part follows without a blank: `--time="1:00:00"`
                yield found.start() + len(long) + 1, following.end() if quoted else found.end()
            elif found.group() in {long, short} - {b""}:
                if index + 1 == len(words):
                    raise script.refusal(found.start(), f"{flag} has no value there")
                yield words[index + 1].span()
            elif short and found.group().startswith(short) and not found.group().startswith(b"--"):
                yield found.start() + len(short), found.end()


def _after_the_last(script: Script) -> int:
    """Below the last directive, or below the `#!` line where there is none."""
    last = max((found.end() for found in _directives(script)), default=None)
    if last is None:
        if not script.source.startswith(b"#!"):
            raise ScriptRefused(1, "it does not begin with #!, which sbatch asks for")
        last = 0
    line_end = script.source.find(b"\n", last)
    if line_end < 0:
        raise script.refusal(last, "the line is the last one, and has no end")
    return line_end + 1
