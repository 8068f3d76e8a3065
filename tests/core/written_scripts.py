"""Job scripts of every kind, and what is read from them and written into them: records it anew when it is run.

`python -m tests.core.written_scripts` writes tests/data/written_scripts.txt. An upgrade may not change it by accident:
what was written yesterday is written today, and what was refused is refused, with the same line.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from sentinel.jobscript import Change, RemoveOption, SetDirective, SetJson, SetOption, SetVariable, rewrite
from sentinel.jobscript.given import given
from sentinel.jobscript.script_changes import baseline_of_script, new_scripts
from sentinel.plan.mitigation import overrides_for
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor
from tests.core.drawn_situations import Drawn
from tests.core.hostile_scripts import draw
from tests.core.planned_situations import short
from tests.core.script_snippets import snippets
from tests.core.test_job_script import REFUSED, TAKEN, TEXTS

__all__ = ["CASES", "RECORD", "recorded", "said"]

RECORD = Path(__file__).parents[1] / "data" / "written_scripts.txt"
_HOSTILE = 150
_DECIDED = 100
_WRITABLE = ("reseed", "seqlen", "warmup", "peak", "betas", "clip", "scale", "free")

ASKED: tuple[Change, ...] = (
    SetOption(flag="--lr", value="3e-5"),
    SetOption(flag="--seed", value="a b"),
    SetOption(flag="--no-load-rng"),
    SetOption(flag="--new-option", value="7"),
    RemoveOption(flag="--lr", values=1),
    RemoveOption(flag="--seed"),
    SetVariable(name="A", value="3"),
    SetVariable(name="SAVE_INTERVAL", value="100"),
    SetJson(path=("a",), value=3),
    SetJson(path=("curriculum_learning", "enabled"), value=True),
    SetDirective(flag="--time", value="10:00:00"),
    SetDirective(flag="--comment", value="it's"),
)


def said(name: str) -> str:
    """What is read from the script, and what comes of each change: the lines that go and come, or why not."""
    return "\n".join([f"== {name}", *map(ascii, CASES[name]())])


def _plain(text: str, *changes: Change) -> Iterator[str]:
    try:
        yield f"given: {short(given(text))}"
    except ScriptRefused as error:
        yield f"given: {error}"
    for change in changes:
        yield f"{change!r:.200}: {_outcome(text, change)}"


def _outcome(text: str, change: Change) -> str:
    try:
        return _difference(rewrite(text, [change]).diff)
    except (ScriptRefused, ConfigError) as error:
        return str(error)


def _difference(diff: str) -> str:
    return "".join(f"{line[:160]}|" for line in diff.split("\n")[2:] if line[:1] in ("+", "-", "@", "\\"))


def _hostile(seed: int) -> Iterator[str]:
    try:
        text, change = draw(random.Random(seed))
    except ConfigError as error:
        yield str(error)
        return
    yield f"{change!r:.200}: {_outcome(text, change)}"


def _decided(seed: int) -> Iterator[str]:
    """A drawn rung in one of the scripts, as the first start's script and as that of all later ones."""
    drawn = Drawn(seed)
    text = TEXTS[drawn.one("lists_in_variables", "lists_in_variables", *sorted(TEXTS))]
    own = baseline_of_script(text)
    step = drawn.one(0, 300, 5000)
    at = Anchor(global_step=step, consumed_samples=drawn.maybe(512 * step, 0.9), consumed_tokens=2048 * 512 * step)
    try:
        rung = drawn.rung(_WRITABLE)
        made = overrides_for(rung, own, incident="incident-1", rollback="incident-1-r1", anchor=at, new_seed=44)
        scripts = new_scripts(text, made)
    except (ScriptRefused, ConfigError) as error:
        yield str(error)
        return
    yield f"first: {_difference(scripts.first.diff)}"
    yield f"later: {_difference(scripts.later.diff)}"
    yield from scripts.remarks


_FEW: tuple[Change, ...] = (
    SetOption(flag="--lr", value="7"),
    RemoveOption(flag="--lr"),
    SetVariable(name="L", value="3"),
    SetVariable(name="A", value="3"),
    SetJson(path=("a", "b"), value=3),
    SetDirective(flag="--time", value="1"),
)

CASES: dict[str, Callable[[], Iterator[str]]] = {
    **{name: lambda text=text: _plain(text, *ASKED) for name, text in TEXTS.items()},
    **{
        name: lambda text=text, change=change: _plain(text, change, *ASKED)
        for name, (text, change, *_) in (REFUSED | TAKEN).items()
    },
    **{ascii(name): lambda text=text: _plain(text, *_FEW) for name, text in snippets()},
    **{f"hostile {seed}": lambda seed=seed: _hostile(seed) for seed in range(_HOSTILE)},
    **{f"decided {seed}": lambda seed=seed: _decided(seed) for seed in range(_DECIDED)},
}


def recorded() -> dict[str, str]:
    """Name of a case -> what is recorded of it."""
    parts = RECORD.read_text(encoding="utf-8").split("== ")[1:]
    return {part.partition("\n")[0]: "== " + part.rstrip("\n") for part in parts}


if __name__ == "__main__":
    RECORD.write_text("\n".join(map(said, CASES)) + "\n", encoding="utf-8")
