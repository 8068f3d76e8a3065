"""Logs of many trainers in the form in which they were seen in public, with numbers that are drawn here: what is true
of them is known without any reader. `python -m tests.sources.public_logs` prints how each is read.

The forms stand in tests/data/public_log_forms.txt, as `== KIND | WHERE IT WAS SEEN | OPTIONS` and lines that each begin
with the part that they belong to (head, line, fifth, last). Tabs, carriage returns and backslashes are written as in
Python; a $ ends a line that would end in a blank. A name in angle brackets stands where a number is drawn:

n, i            the step; its place in the epoch, which begins again in each
e, e0           the epoch, from 1 and from 0
p               the step before
loss            the training loss, with two digits
val, x, y, z    other numbers; lr, norm
per, total      steps of an epoch, of the run
t               a time of day
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError

_STEPS, _NAN = 24, 21  # steps of a log, and the one whose loss is nan
_NAME = re.compile(r"<([a-z]+0?)(?::([^>]*))?>")


@dataclass(frozen=True, slots=True)
class Form:
    """How a trainer writes its steps."""

    kind: str
    seen: str
    """Where: of GitHub without the host."""

    line: str
    """One step; several lines where it takes them."""

    is_read: str = "right"
    """right; refused; or part, where steps are left out and that is said."""

    every: int = 10
    first: int = 10
    per_epoch: int = 0  # steps; 0: the log has no epochs
    adds: int = 0  # 1 where the log counts from 0
    fifth: str = ""  # what follows each fifth step
    head: str = ""
    has_nan: bool = True
    last: str = ""  # what ends the log
    bits: bool = False  # losses in base 2
    suffix: str = ".log"
    times: int = 1  # 1000 where a step is written as 3K
    fields: Mapping[str, float] | None = None  # what else is read of each step; None: that is not asked


_READ = ("lr", "grad_norm", "loss_scale", "step_time_s", "time_unix_s")
_DATA = Path(__file__).parents[1] / "data" / "public_log_forms.txt"


def _forms() -> Iterator[Form]:
    for block in _DATA.read_text(encoding="utf-8").split("== ")[1:]:
        first, *lines = block.removesuffix("\n").split("\n")
        kind, seen, options = first.split(" |")
        parts = defaultdict[str, list[str]](list)
        for line in lines:
            text = re.sub(r"\\(.)", lambda found: {"t": "\t", "r": "\r"}.get(found[1], found[1]), line[6:])
            parts[line[:6].rstrip()].append(text.removesuffix("$"))
        told: dict[str, Any] = {name: "\n".join(part) for name, part in parts.items()}
        for name, _, value in (option.partition("=") for option in options.split()):
            told[name] = value if name in ("is_read", "suffix") else ast.literal_eval(value)
        read = {name: told.pop(name) for name in _READ if name in told}
        yield Form(kind, seen.strip(), fields=read or None, **told)


FORMS = tuple(_forms())


def drawn(form: Form) -> tuple[str, list[tuple[int, float]]]:
    """A log of that form, and its steps with their losses."""
    draw, text, truth = random.Random(form.kind), [form.head], []
    for k in range(_STEPS):
        n = form.first + form.every * k
        loss = round(draw.uniform(5, 7) - 0.1 * k, 2)
        if k == _NAN and form.has_nan:
            loss = math.nan
        values = {name: round(draw.uniform(8, 9), 5) + 1e-6 for name in ("val", "x", "y", "z")}
        epoch, place = divmod(n - 1, form.per_epoch) if form.per_epoch else (0, n - 1)
        values |= {
            "n": n,
            "i": place + 1,
            "p": n - 1,
            "e": epoch + 1,
            "e0": epoch,
            "loss": loss,
            "norm": round(draw.uniform(1, 2), 4),
        }
        values |= {"per": form.per_epoch, "t": f"{k // 3600:02d}:{k // 60 % 60:02d}:{k % 60:02d}"}
        text.append(_filled(form.line, values) + "\n")
        if k % 5 == 4 and form.fifth:
            text.append(_filled(form.fifth, values) + "\n")
        truth.append((form.times * n + form.adds, loss * (math.log(2) if form.bits else 1)))
    return "".join(text) + form.last, truth


def _filled(line: str, values: Mapping[str, object]) -> str:
    return _NAME.sub(lambda found: format(values[found[1]], found[2] or ""), line)


def outcome(form: Form) -> tuple[str, str]:
    """How the log is read: right, part, refused or WRONG; and what is said of it."""
    text, truth = drawn(form)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"log{form.suffix}"
        path.write_text(text)
        try:
            (source,) = open_sources(path, {})
            read = [
                (int(step), float(loss))
                for block in source
                for step, loss in zip(block.steps, block.columns["loss"], strict=True)
            ]
        except ConfigError as error:
            return "refused", str(error).removeprefix(f"{path}: ")
        said = "; ".join(source.notes)
    if not read:
        return "refused", "no step"
    return compared(read, truth, said), said


def compared(read: list[tuple[int, float]], truth: list[tuple[int, float]], said: str) -> str:
    """right; part, where steps are missing and that is said; WRONG."""
    if _equal(read, truth):
        return "right"
    rest = iter(truth)
    is_part = all(any(_equal([one], [true]) for true in rest) for one in read)
    return "part" if is_part and said else "WRONG"


def _equal(read: list[tuple[int, float]], truth: list[tuple[int, float]]) -> bool:
    return len(read) == len(truth) and all(
        step == true and (math.isclose(loss, wanted, rel_tol=1e-6) or (math.isnan(loss) and math.isnan(wanted)))
        for (step, loss), (true, wanted) in zip(read, truth, strict=True)
    )


def _rows() -> Iterator[str]:
    for form in FORMS:
        how, said = outcome(form)
        yield f"{how:8} {'' if how == form.is_read else '<>' + form.is_read:10} {form.kind[:40]:40} {said[:150]}"


if __name__ == "__main__":
    print("\n".join(_rows()))
