"""Job scripts put together from many pieces, and what is read from them and written into them, without sentences.

`python -m tests.jobscript.composed_scripts ["SEED | WHAT" ...]` records it anew in tests/data/composed_scripts.txt, and
tries each script that came of a change with the real bash, so that nothing is recorded which gives the trainer
something else than was asked for.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from sentinel.jobscript import Change, RemoveOption, SetJson, SetOption, SetVariable, rewrite
from sentinel.jobscript.given import Given, Option, Unread, given
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from tests.jobscript.hostile_scripts import wrong
from tests.jobscript.script_snippets import HEADS, LINES, SETS, STARTS, USES, VALUES
from tests.jobscript.shell_sandbox import changed_lines
from tests.records import Record

__all__ = ["RECORD", "asked", "options_of", "said", "script"]


_AROUND = (
    *("{}", "{}", "{}", "{}", "if true; then\n{}\nfi", "main() {{\n{}\n}}\nmain", "for i in 1 2; do\n{}\ndone"),
    *("true && {{\n{}\n}}", "(\n{}\n)"),
)
_MORE = (
    "f() { echo $A; }\nf",
    "A=--fp16",
    'A+=" --lr 4"',
    'A="$A --wd 0.1"',
    'B="$A"',
    'A=" \\\n  --lr 1 \\\n  --seed 2 \\\n  "',
    'A="\n  --lr 1\n  --seed 2\n"',
    "A=(\n  --lr 1\n  --seed 2 # two\n)",
    'cat > c.json <<J\n{\n  "a": 1,\n  "b": {\n    "c": $B\n  }\n}\nJ',
    'cat > c.json <<\'J\'\n{"a": {}, "b": [1, 2]}\nJ',
    'cat <<J > "$C"\n{"a": "x", "b": {"a": 1}}\nJ',
    "C=c.json",
    "cat > d.json <<J\n{}\nJ",
    "# --lr 6",
    "cd /tmp",
)
_CHANGES: tuple[Change, ...] = (
    SetOption(flag="--lr", value="7"),
    SetOption(flag="--lr", value="a b"),
    SetOption(flag="--seed", value="8"),
    SetOption(flag="--wd", value="9"),
    SetOption(flag="--no-load-rng"),
    SetOption(flag="--fp16"),
    RemoveOption(flag="--lr"),
    RemoveOption(flag="--seed", values=1),
    RemoveOption(flag="--fp16", values=0),
    SetVariable(name="A", value="3"),
    SetVariable(name="B", value="3"),
    SetVariable(name="L", value="5"),
    SetJson(path=("a",), value=3),
    SetJson(path=("b", "c"), value={"d": [1, None]}),
    SetOption(flag="--wd", value="-9"),
    RemoveOption(flag="--wd"),
)


def script(rng: random.Random) -> str:
    """A script; most start one trainer, and set what it gets in one way or another."""
    lines = [*LINES, *(m for m in _MORE for _ in range(5))]
    start = rng.choice(STARTS).replace("x.py", "pretrain_gpt.py")
    parts = [f"B=4\nL={rng.choice(VALUES)}" if rng.random() < 0.3 else "B=4"]
    parts += rng.sample(lines, rng.choice((0, 0, 1, 1, 2)))
    parts += [rng.choice((rng.choice(SETS), rng.choice(SETS), rng.choice(_MORE)))]
    parts += rng.sample(lines, rng.choice((0, 0, 0, 1)))
    used = rng.choice(USES) + rng.choice(("", " --seed 5", " --lr $L", " --deepspeed_config c.json", " --wd $((B*2))"))
    parts += [rng.choice(_AROUND).format(start.replace("USED", used))]
    parts += rng.sample(lines, rng.choice((0, 0, 0, 1)))
    head = f"#!/bin/bash\n{rng.choice(HEADS)}\n" if rng.random() < 0.5 else ""
    return head + "\n".join(parts) + "\n"


def asked(seed: int) -> tuple[str, dict[str, Change]]:
    """The script of that seed, and the changes that are tried in it, each by itself."""
    rng = random.Random(seed)
    text = script(rng)
    return text, {_short(change): change for change in rng.sample(_CHANGES, 6)}


def said(name: str) -> str:
    """What is read from the script, or what comes of the change: the lines, or the line that stands in the way."""
    seed, _, what = name.partition(" | ")
    text, changes = asked(int(seed))
    return _read(text, what) if what in ("options", "deepspeed") else _written(text, changes[what])


def _read(text: str, what: str) -> str:
    try:
        found = given(text)
    except ScriptRefused as refused:
        return f"refused {refused.line_number}"
    if what == "options":
        return ascii(
            f"{found.program} {options_of(found.options)} after {options_of(found.launcher)} {found.directives}"
        )
    return ascii(f"{found.deepspeed} {found.complete} {_unread(found)}")


def options_of(options: tuple[Option, ...]) -> str:
    """Each with its values, and the line of what could not be read of it."""
    return " ".join(f"{o.flag}{o.values}{'' if o.unread is None else f'?{o.unread.line}'}" for o in options)


def _unread(found: Given) -> list[tuple[str, int | None]]:
    def named(one: Unread) -> tuple[str, int | None]:
        return one.what if one.what[0] in "-$" else "", one.line

    return [named(one) for one in found.unread]


def _written(text: str, change: Change) -> str:
    try:
        made = rewrite(text, [change])
    except (ScriptRefused, ConfigError) as error:
        return str(getattr(error, "line_number", "error"))
    lines = "|".join(line for line in made.diff.split("\n")[2:] if line[:1] in ("+", "-", "\\"))
    return f"{changed_lines(text, made.text)} {lines!a}"


def _short(change: Change) -> str:
    return " ".join([type(change).__name__, *(ascii(getattr(change, name)) for name in change.__dataclass_fields__)])


def _tried(name: str) -> Iterator[str]:
    """What bash finds wrong; of a module it can't be told which program is the trainer."""
    seed, _, what = name.partition(" | ")
    text, changes = asked(int(seed))
    if what in changes and "-m pkg" not in text:
        with contextlib.suppress(ValueError):  # what the script writes was no JSON before
            if why := wrong(text, changes[what]):
                yield f"{name} {text!a} {why}"


RECORD = Record("composed_scripts.txt", said, one_line=True)

if __name__ == "__main__":
    RECORD.write()
    for each in RECORD.read():
        print(*_tried(each), sep="\n", end="")
