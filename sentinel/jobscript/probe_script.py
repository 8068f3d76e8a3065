"""A probe's job script: which of sbatch's options it overrides, and where a program is put in front of its commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from sentinel.jobscript.arguments import read
from sentinel.jobscript.directives import directive
from sentinel.jobscript.syntax import from_bytes, parse, to_bytes
from sentinel.jobscript.trainer import Launch, trainers

_STARTS = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate|bash|sh|env|numactl|bindpcie)")
_HELD = "SENTINEL_PROBE_HELD"  # set in the script that has begun again behind the program


def first_task(script: str, arguments: Sequence[str]) -> str | None:
    """The first index of the array that the arguments of sbatch, else the script, ask for; None where there is none."""
    asked = _value("--array", "-a", arguments) or directive(parse(script), "--array")
    found = re.match(r"\d+", asked or "")
    return found[0] if found else None


def has_error_file(script: str, arguments: Sequence[str]) -> bool:
    """Whether the job's errors go to a file of their own."""
    return (_value("--error", "-e", arguments) or directive(parse(script), "--error")) is not None


def _value(long: str, short: str, arguments: Sequence[str]) -> str | None:
    """What the last of the arguments that has the option gives it."""
    found = None
    for number, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag == long:
            found = value if equals else next(iter(arguments[number + 1 :]), None)
        elif word == short:
            found = next(iter(arguments[number + 1 :]), None)
        elif word.startswith(short) and not word.startswith("--"):
            found = word[len(short) :]
    return found


def behind(script: str, words: Sequence[str]) -> str:
    """The script that begins again behind the words, and has them in front of what srun starts too: a step is no child
    of the script. ScriptRefused where the trainer's start is not seen."""
    reading, given = read(parse(script)), shlex.join(words)
    launches = [launch for launch in trainers(reading) if _is_step(launch)]
    places = {launch: place for launch in launches if (place := next(_places(launch), None)) is not None}
    source = to_bytes(script)
    if given == " ".join(words) or not any(_inside_quotes(launch) for launch in launches):
        for place in sorted(set(places.values()), reverse=True):
            source = source[:place] + to_bytes(f"{given} ") + source[place:]
    else:
        places = {}
    head = [f'if [ -z "${{{_HELD}:-}}" ]; then {_HELD}=1 exec {given} "$BASH" "$0" "$@"; fi; unset {_HELD}\n']
    if len(places) < len(launches):
        head.append('echo "sentinel: what srun starts is not held back from the run\'s folders" >&2\n')
    lines = from_bytes(source).splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    return "".join([*lines[:first], *head, *lines[first:]])


def _is_step(launch: Launch) -> bool:
    return any(reached.word.raw.rpartition("/")[2] == "srun" for reached in launch.starting)


def _inside_quotes(launch: Launch) -> bool:
    return any(reached.reparsed for reached in launch.starting)


def _places(launch: Launch) -> Iterator[int]:
    """Where the word stands that begins what srun starts."""
    after = False
    for reached in launch.starting:
        raw = reached.word.raw
        if after and _STARTS.fullmatch(raw):
            yield reached.word.start
        after = after or raw.rpartition("/")[2] == "srun"
