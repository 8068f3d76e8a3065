"""Regret and calibration as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sentinel.plan.pooled_spikes import POOLED

from .episodes import Traced
from .regret import (
    INTERVALS,
    Cost,
    Verdicts,
    calibration,
    key,
    left_out_tables,
    perfect_verdicts,
    priced_verdicts,
    regret,
)
from .scoring import Told

__all__ = ["format_waiting", "waiting_json"]

By = Mapping[str, Mapping[tuple[str, str], Sequence[Told]]]
"""Detector to curve to its verdicts."""

PARTS = ("tuning", "held out", "all")


def _of_part(traces: Sequence[Traced], part: str) -> list[Traced]:
    return [t for t in traces if part == "all" or t.curve.held_out == (part == "held out")]


def _rows(traces: Sequence[Traced], peers: By) -> Iterator[tuple[str, Verdicts]]:
    by, tables = {key(t.curve): t for t in traces}, left_out_tables(traces, POOLED)
    yield "sentinel, patience", lambda curve, *_: by[key(curve)].verdicts
    yield (
        "sentinel, priced",
        lambda curve, repeat, restart: priced_verdicts(by[key(curve)], tables[curve.family], repeat, restart),
    )
    yield "sentinel, perfect", lambda curve, *_: perfect_verdicts(by[key(curve)])
    for name, said in peers.items():
        yield name, _peer(said)


def _peer(said: Mapping[tuple[str, str], Sequence[Told]]) -> Verdicts:
    return lambda curve, *_: said[key(curve)]


def _costs(traces: Sequence[Traced], peers: By) -> Iterator[tuple[str, dict[tuple[int, str], Cost]]]:
    for name, verdicts in _rows(traces, peers):
        yield (
            name,
            {
                (interval, part): regret([t.curve for t in _of_part(traces, part)], verdicts, interval)
                for interval in INTERVALS
                for part in PARTS
            },
        )


def format_waiting(traces: Sequence[Traced], peers: By) -> str:
    """Both tables."""
    lines = [
        "Regret, % of the oracle's cost, by steps between two saves; families held out one by one, or as a part",
        f"{'':24}" + "".join(f"{f'{n}, {part}':>16}" for n in INTERVALS for part in PARTS),
    ]
    costs = dict(_costs(traces, peers))
    for name, of in costs.items():
        lines.append(f"{name:24}" + "".join(f"{100 * cost.regret:16.1f}" for cost in of.values()))
    first = next(iter(costs.values()))
    lines.append(f"{'oracle, save intervals':24}" + "".join(f"{cost.oracle:16.1f}" for cost in first.values()))
    tables = left_out_tables(traces, POOLED)
    for part in PARTS:
        found = calibration(_of_part(traces, part), tables)
        low, high = found.error_range
        error = f"error {100 * found.error:.1f} points ({100 * low:.1f} to {100 * high:.1f} by families drawn anew)"
        lines += ["", f"Calibration, {part}: {error}, Brier score {found.brier:.3f}"]
        lines += [f"{'predicted':12}{'mean':>8}{'never back':>12}{'95 %':>16}{'n':>6}{'spikes':>8}", *found.lines]
    return "\n".join(lines)


def waiting_json(traces: Sequence[Traced], peers: By) -> dict[str, object]:
    """The same for --json."""
    tables = left_out_tables(traces, POOLED)
    return {
        "regret": {
            name: {f"{interval}, {part}": cost.regret for (interval, part), cost in of.items()}
            for name, of in _costs(traces, peers)
        },
        "calibration_error": {part: calibration(_of_part(traces, part), tables).error for part in PARTS},
    }
