"""The rows as text: the machine, each case's figures, what is wrong, what is not done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

from .case import Case, Row
from .rows import MOST_TRIES, Rows

__all__ = ["faults", "left", "table"]


def table(rows: Rows, every: Sequence[Case]) -> str:
    """All of it; cases in their order, whatever the order in which they were answered."""
    lines = [date.today().isoformat(), *(f"{key:18}{value}" for key, value in rows.machine.items())]
    for case in every:
        if case.name in rows.rows:
            lines += ["", *_section(case.name, rows.rows[case.name])]
    lines += ["", *(f"WRONG: {fault}" for fault in faults(rows))]
    lines += [f"not done: {name}" for name in left(rows, every)]
    return "\n".join(lines)


def faults(rows: Rows) -> list[str]:
    """What is wrong, over all calls so far, a sentence each."""
    wrong = [f"{name}: {fault}" for name, row in rows.rows.items() for fault in row.get("wrong", [])]
    return wrong + [f"{name}: {why}" for name, why in rows.failed.items()]


def left(rows: Rows, every: Sequence[Case]) -> list[str]:
    """The cases that have no row."""
    given_up = f"given up after {MOST_TRIES} tries"
    deepspeed = rows.machine.get("deepspeed", "none")
    names = []
    for case in every:
        if case.name in rows.rows:
            continue
        why = given_up if rows.tries[case.name] >= MOST_TRIES else ""
        if case.deepspeed and deepspeed.startswith("none"):
            why = f"DeepSpeed can't be imported here ({deepspeed.removeprefix('none: ')})"
        names.append(f"{case.name}{': ' if why else ''}{why}")
    return names


def _section(name: str, row: Row) -> Iterator[str]:
    yield f"== {name} ({row['took_s']:.0f} s)"
    for key, value in row.items():
        if key not in ("wrong", "took_s"):
            yield from _shown(key, value, indent=2)


def _shown(key: str, value: Any, *, indent: int) -> Iterator[str]:
    margin = " " * indent
    if isinstance(value, dict) and value:
        yield f"{margin}{key}: " + ", ".join(f"{name} {_number(of)}" for name, of in value.items())
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield f"{margin}{key}:"
        for of in value:
            yield f"{margin}  " + ", ".join(f"{name} {_number(number)}" for name, number in of.items())
    elif value is not None:
        yield f"{margin}{key}: {_number(value)}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
