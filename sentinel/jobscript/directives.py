"""Reading an `#SBATCH` line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sentinel.jobscript.syntax import Script, from_bytes

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
_HETEROGENEOUS = re.compile(rb"\s*(?:hetjob|packjob)\b")  # A job with directives for each of its components


def directive(script: Script, flag: str) -> str | None:
    """The value that sbatch reads: of the last line that has it. None where none has, or this can't be told."""
    lines = list(_directives(script.source))
    values = [value for line in lines for value in _values(line, flag)]
    if not values or None in values or any(map(_HETEROGENEOUS.match, lines)):
        return None
    return from_bytes(values[-1] or b"").strip("\"'")


def _directives(source: bytes) -> Iterator[bytes]:
    """What stands behind `#SBATCH` in the lines that sbatch reads: up to the first that is neither blank nor a
    comment."""
    for line in source.splitlines():
        if line.strip() and not line.startswith(b"#"):
            return
        if (found := _DIRECTIVE.match(line)) is not None:
            yield found[1]


def _values(line: bytes, flag: str) -> Iterator[bytes | None]:
    """Each value that the directive gives the option; None for one that is not there."""
    long, short = flag.encode(), _SHORT.get(flag, "").encode()
    words = list(_WORD.finditer(re.split(rb"\s#", line, maxsplit=1)[0]))
    for found, following in zip(words, [*words[1:], None], strict=False):
        word = found.group()
        if word.startswith(long + b"="):
            # A quoted part follows without a blank: `--time="1:00:00"`.
            quoted = following is not None and following.start() == found.end()
            yield word[len(long) + 1 :] + (following.group() if following is not None and quoted else b"")
        elif word in {long, short} - {b""}:
            yield None if following is None else following.group()
        elif short and word.startswith(short) and not word.startswith(b"--"):
            yield word[len(short) :]
