"""Job scripts of every kind, and what is read from them and written into them.

`python -m tests.jobscript.written_scripts ["CASE | WHAT" ...]` records it anew in tests/data/written_scripts.txt. An
upgrade may not change it by accident: what was written yesterday is written today, and what was refused is refused,
with the same line.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from sentinel.jobscript import Change, RemoveOption, SetJson, SetOption, SetVariable, rewrite
from sentinel.jobscript.facts import ScriptFacts
from sentinel.jobscript.given import given
from sentinel.jobscript.megatron_options import SeqlenWarmup, Wanted, changes_at, megatron_changes
from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.lint import KnownSettings, new_scripts
from sentinel.plan.choose.mitigation import overrides_for
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from tests.jobscript.composed_scripts import options_of
from tests.jobscript.hostile_scripts import draw
from tests.jobscript.script_snippets import snippets
from tests.plan.drawn_situations import Drawn
from tests.plan.planned_situations import short
from tests.records import Record
from tests.support.script_texts import REFUSED, TAKEN, TEXTS

__all__ = ["CASES", "RECORD", "said"]

_HOSTILE = 150
_DECIDED = 100
_MEGATRONS = 120
_WRITABLE = ("reseed", "seqlen", "warmup", "peak", "betas", "clip", "scale", "free")

Said = dict[str, Callable[[], str]]
"""What is asked of a case -> the answer."""

GIVEN = ("program", "options", "launcher", "directives", "deepspeed", "unread", "complete")
DECIDED = ("first", "later", "remarks")

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
)


def said(name: str) -> str:
    """What is read from the script, or what comes of the change: the lines that go and come, or why not."""
    case, _, what = name.rpartition(" | ")
    return ascii(CASES[case]()[what]())[1:-1]


def _plain(text: str, *changes: Change) -> Said:
    """What is said of a script: what it gives the trainer, and what comes of each change."""
    of_given = {what: lambda what=what: _given(text, what) for what in GIVEN}
    return of_given | {_named(change): lambda change=change: _outcome(text, change) for change in changes}


def _given(text: str, what: str) -> str:
    try:
        found = getattr(given(text), what)
        return options_of(found) if what in ("options", "launcher") else short(found)
    except ScriptRefused as error:
        return str(error)


def _named(change: Change) -> str:
    values = [getattr(change, field) for field in change.__dataclass_fields__]
    return " ".join([type(change).__name__, *(ascii(value) for value in values)])[:120]


def _outcome(text: str, change: Change) -> str:
    try:
        return _difference(rewrite(text, [change]).diff)
    except (ScriptRefused, ConfigError) as error:
        return str(error)


def _difference(diff: str) -> str:
    return "".join(f"{line[:160]}|" for line in diff.split("\n")[2:] if line[:1] in ("+", "-", "@", "\\"))


def _hostile(seed: int) -> str:
    try:
        text, change = draw(random.Random(seed))
    except ConfigError as error:
        return str(error)
    return f"{_named(change)}: {_outcome(text, change)}"


@cache
def _decided(seed: int) -> dict[str, str]:
    """A drawn rung in one of the scripts, as the first start's script and as that of all later ones."""
    drawn = Drawn(seed)
    text = TEXTS[drawn.one("lists_in_variables", "lists_in_variables", *sorted(TEXTS))]
    own = baseline_of_script(text)
    step = drawn.one(0, 300, 5000)
    at = Anchor(global_step=step, consumed_samples=drawn.maybe(512 * step, 0.9), consumed_tokens=2048 * 512 * step)
    try:
        rung = drawn.rung(_WRITABLE)
        made = overrides_for(rung, own, incident="incident-1", rollback="incident-1-r1", anchor=at, new_seed=44)
        scripts = new_scripts(text, made, KnownSettings(scheduler="lr-scheduler"))
    except (ScriptRefused, ConfigError) as error:
        return dict.fromkeys(DECIDED, str(error))
    first, later = _difference(scripts.first.diff), _difference(scripts.later.diff)
    return dict(zip(DECIDED, (first, later, "; ".join(scripts.remarks)), strict=True))


def _megatron(seed: int) -> str:
    """Changes that a drawn run of Megatron's needs, and the starts that each is for."""
    drawn = Drawn(seed)
    unit = drawn.one("samples", "steps")
    min_lr, train, decay = drawn.one(0.0, 6e-6), drawn.one(300_000, 300_000_000), drawn.maybe(126_000)
    by_steps = unit == "steps"
    run = ScriptFacts(
        min_lr=min_lr,
        lr=6e-5,
        seq_length=2048,
        global_batch_size=512,
        train_iters=train if by_steps else None,
        train_samples=None if by_steps else train,
        lr_decay_iters=decay if by_steps else None,
        lr_decay_samples=None if by_steps else decay,
        lr_scheduler=drawn.one("lr-scheduler", "opt_param-scheduler"),
    )
    schedule = FixedLinear(start=64, full=2048, total_steps=drawn.one(0, 9, 6000), anchor_step=drawn.one(0, 3000))
    tokens = drawn.one(600_000_000_000, 300_000)
    end = drawn.maybe(409_600_000)
    slw = SeqlenWarmup(
        schedule=schedule, train_tokens=tokens, decay_tokens=drawn.one(9, 200_000), warmup_end_tokens=end
    )
    length = drawn.one(4000, 126_000, 300_000)
    seed, peak_lr = drawn.maybe(44), drawn.maybe(drawn.one(3e-5, 6e-6, 1e-6, 3.0), 0.4)
    seqlen_warmup = drawn.maybe(slw, 0.4)
    longer = LrSchedule(peak=6e-5, warmup=length, decay_end=0, unit=drawn.one(unit, "steps", "samples", "tokens"))
    lr_warmup = drawn.maybe(longer, 0.5)
    numbers = {"seed": seed, "adam_beta2": drawn.maybe(0.95), "clip_grad": drawn.maybe(0.5)}
    numbers["loss_scale"] = drawn.maybe(4096.0)
    wanted = Wanted(
        numbers={name: value for name, value in numbers.items() if value is not None},
        peak_lr=peak_lr,
        seqlen_warmup=seqlen_warmup,
        lr_warmup=lr_warmup,
    )
    try:
        marked = megatron_changes(wanted, run)
    except ConfigError as error:
        return str(error)
    starts = f"{len(changes_at(marked, 'first'))} first, {len(changes_at(marked, 'later'))} later"
    return "; ".join([starts, *(f"{each.at}: {_named(each.change)}" for each in marked)])


_FEW: tuple[Change, ...] = (
    SetOption(flag="--lr", value="7"),
    RemoveOption(flag="--lr"),
    SetVariable(name="L", value="3"),
    SetVariable(name="A", value="3"),
    SetJson(path=("a", "b"), value=3),
)

CASES: dict[str, Callable[[], Said]] = {
    **{name: lambda text=text: _plain(text, *ASKED) for name, text in TEXTS.items()},
    **{
        name: lambda text=text, change=change: _plain(text, change, *ASKED)
        for name, (text, change, *_) in (REFUSED | TAKEN).items()
    },
    **{ascii(name): lambda text=text: _plain(text, *_FEW) for name, text in snippets()},
    **{f"hostile {seed}": lambda seed=seed: {"change": lambda: _hostile(seed)} for seed in range(_HOSTILE)},
    **{f"megatron {seed}": lambda seed=seed: {"changes": lambda: _megatron(seed)} for seed in range(_MEGATRONS)},
    **{
        f"decided {seed}": lambda seed=seed: {what: lambda what=what: _decided(seed)[what] for what in DECIDED}
        for seed in range(_DECIDED)
    },
}
"""Name of a case -> what can be said of it."""


RECORD = Record("written_scripts.txt", said, one_line=True)

if __name__ == "__main__":
    RECORD.write()
