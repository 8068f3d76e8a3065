"""Two runs and more at the same step: how far apart they are, and who leads since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.judge.reference import Reference

_A_LEAD = 0.005  # Share of the loss below which nobody leads: what the judge, too, calls no offset
_PER_DECADE = (1, 2, 3, 5, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The runs at one place."""

    at: int  # The global step, or the consumed tokens
    losses: tuple[float | None, ...]  # Smoothed, nats, in the order of the runs; None where a run says nothing
    ratios: tuple[float | None, ...]  # Each run's loss over the first run's; None where either says nothing
    leader: str | None  # The run with the smallest loss; None where the next one is within half a percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All places, and the last word."""

    runs: tuple[str, ...]
    rows: tuple[Compared, ...]
    leader: str | None  # Who leads at the last place at which all runs can be compared; None where nobody does
    leads_since: int | None  # The first of the places from which on it has led at each


def compare(runs: Sequence[Reference]) -> Comparison:
    """The smoothed losses at 1, 2, 3, 5, 7, 10, 20 … and at the last place that all have, where two runs have one."""
    rows = [row for at in _places(runs) if (row := _row(runs, at)) is not None]
    whole = [row for row in rows if None not in row.losses]
    leader = whole[-1].leader if whole else None
    since = None
    for row in reversed(whole):
        if leader is None or row.leader != leader:
            break
        since = row.at
    return Comparison(runs=tuple(r.name for r in runs), rows=tuple(rows), leader=leader, leads_since=since)


def _places(runs: Sequence[Reference]) -> list[int]:
    ends = [run.ends for run in runs if run.ends is not None]
    if not ends:
        return []
    largest = max(last for _, last in ends)
    grid = [n * 10**decade for decade in range(len(str(largest))) for n in _PER_DECADE]
    return sorted({at for at in grid if at <= largest} | {min(last for _, last in ends)})


def _row(runs: Sequence[Reference], at: int) -> Compared | None:
    losses = tuple(run.loss(at) for run in runs)
    known = sorted((loss, run.name) for loss, run in zip(losses, runs, strict=True) if loss is not None)
    if len(known) < 2:
        return None
    first = losses[0]
    ahead = known[1][0] - known[0][0] > _A_LEAD * abs(known[1][0])
    return Compared(
        at=at,
        losses=losses,
        ratios=tuple(None if first is None or loss is None or not first else loss / first for loss in losses),
        leader=known[0][1] if ahead else None,
    )
