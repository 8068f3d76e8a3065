"""The judge with each threshold halved and doubled: a verdict that hangs on one would show here.

Each curve's readings are made ready once. Thresholds that are about the job, and not about a curve, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from sentinel.judge.thresholds import Thresholds

from .curves import Curve
from .ours import NAME, parts_of, said_live
from .scoring import score
from .summing import Summary, summary

__all__ = ["FACTORS", "Row", "format_rows", "sensitivity", "variants"]

FACTORS = (0.5, 2.0)
_OF_THE_JOB = frozenset({"stalled_after_s", "first_sample_within_s", "gone_after_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One threshold."""

    name: str
    default: float
    changed: tuple[Summary | None, ...]
    """One per factor; None where the value is refused."""


def variants(thresholds: Thresholds) -> Iterator[tuple[str, float, tuple[Thresholds | None, ...]]]:
    """Each numeric threshold: its name, its value, and the thresholds with it changed. Counts stay whole, from 1 on."""
    for field in fields(thresholds):
        value = getattr(thresholds, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float) or field.name in _OF_THE_JOB:
            continue
        yield field.name, value, tuple(_changed(thresholds, field.name, value, factor) for factor in FACTORS)


def _changed(thresholds: Thresholds, name: str, value: float, factor: float) -> Thresholds | None:
    new = max(1, round(value * factor)) if isinstance(value, int) else value * factor
    try:
        return replace(thresholds, **{name: new})  # type: ignore[arg-type]
    except ValueError:
        return None


def sensitivity(curves: Sequence[Curve], thresholds: Thresholds, names: Sequence[str] = ()) -> list[Row]:
    """A row per threshold, or per one of `names`; the defaults first."""
    ready = [(curve, parts_of(curve)) for curve in curves]

    def on_all(changed: Thresholds | None) -> Summary | None:
        if changed is None:
            return None
        return summary(NAME, [score(curve, said_live(curve, parts, changed)) for curve, parts in ready])

    rows = [Row(name="as they are", default=1.0, changed=(on_all(thresholds),) * len(FACTORS))]
    for name, value, changed in variants(thresholds):
        if names and name not in names:
            continue
        rows.append(Row(name=name, default=value, changed=tuple(on_all(c) for c in changed)))
    return rows


def format_rows(rows: Sequence[Row]) -> str:
    """Missed, unneeded and late for each; a star where it is worse than the defaults, a plus where it is better."""
    plain = rows[0].changed[0]
    lines = [f"{'':34}{'default':>10}" + "".join(f"{f'x {f:g}: missed, unneeded, late':>34}" for f in FACTORS)]
    for row in rows:
        cells = "".join(f"{_cell(changed, plain):>34}" for changed in row.changed)
        lines.append(f"{row.name:34}{row.default:>10g}{cells}")
    return "\n".join(lines)


def _cell(changed: Summary | None, plain: Summary | None) -> str:
    if changed is None or plain is None:
        return "refused"
    mark = "*" if changed.wrong > plain.wrong else "+" if changed.wrong < plain.wrong else " "
    return f"{changed.missed}, {changed.unneeded}, {changed.late} {mark}"
