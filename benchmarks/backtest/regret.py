"""What a detector's verdicts cost, in save intervals, beside an oracle that knows which spike comes back. Pure.

A rollback throws away the steps from the last save before the onset to the verdict, and takes RESTART of a save
interval to start again. The oracle rolls a divergence back at its labelled onset and nothing else. A divergence that no
verdict is about is rolled back by a person where the log ends. Of verdicts on a harmless curve, and of those before the
onset of a divergence, the first alone is counted: generous to who says many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .curves import DIVERGED, Curve
from .scoring import Told, is_scored, onset_of, tolerance

__all__ = ["INTERVALS", "By", "Cost", "format_regret", "key", "regret", "regret_json"]

INTERVALS = (300, 1000, 3000)
"""Steps between two saves that are tried; 10 readings where that is longer. Chosen before anything was measured."""

RESTART = 0.1
MARGIN_STEPS = 10
PHASES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where between two saves the onset falls: the mean over these."""

PARTS = ("tuning", "held out", "all")

By = Mapping[str, Mapping[tuple[str, str], Sequence[Told]]]
"""Detector to curve to its verdicts."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all curves together, in save intervals."""

    spent: float
    oracle: float

    @property
    def regret(self) -> float:
        """Share of the oracle's cost that was spent beyond it."""
        return (self.spent - self.oracle) / self.oracle if self.oracle else 0.0


def regret(curves: Iterable[Curve], verdicts: Mapping[tuple[str, str], Sequence[Told]], interval_steps: int) -> Cost:
    """The detector's cost and the oracle's."""
    spent = oracle = 0.0
    for curve in curves:
        if not is_scored(curve):
            continue
        save = max(interval_steps, 10 * curve.log_interval)
        for phase in PHASES:
            repeat, restart = MARGIN_STEPS + phase * save, RESTART * save
            steps, best = _of(curve, verdicts[key(curve)], repeat + restart)
            spent += steps / save / len(PHASES)
            oracle += best / save / len(PHASES)
    return Cost(spent, oracle)


def _of(curve: Curve, verdicts: Sequence[Told], at_onset: float) -> tuple[float, float]:
    onset = onset_of(curve) if curve.label in DIVERGED else None
    opens = float("inf") if onset is None else onset - tolerance(curve)
    early = min((v for v in verdicts if v.step < opens), key=lambda v: v.step, default=None)
    unneeded = 0.0 if early is None else at_onset + max(0, early.step - early.onset)
    if onset is None:
        return unneeded, 0.0
    right = min((v.step for v in verdicts if v.step >= opens), default=curve.steps[-1])
    return unneeded + at_onset + max(0, right - onset), at_onset


def key(curve: Curve) -> tuple[str, str]:
    """What names it."""
    return curve.folder, curve.name


def _costs(curves: Sequence[Curve], said: By) -> Iterator[tuple[str, dict[tuple[int, str], Cost]]]:
    of_part = {part: [c for c in curves if part == "all" or c.held_out == (part == "held out")] for part in PARTS}
    for name, verdicts in said.items():
        costs = {(n, part): regret(of_part[part], verdicts, n) for n in INTERVALS for part in PARTS}
        yield name, costs


def format_regret(curves: Sequence[Curve], said: By) -> str:
    """A row for each detector, and the oracle's cost."""
    lines = [
        "Regret, % of the oracle's cost, by steps between two saves",
        f"{'':24}" + "".join(f"{f'{n}, {part}':>16}" for n in INTERVALS for part in PARTS),
    ]
    costs = dict(_costs(curves, said))
    for name, of in costs.items():
        lines.append(f"{name:24}" + "".join(f"{100 * cost.regret:16.1f}" for cost in of.values()))
    first = next(iter(costs.values()))
    lines.append(f"{'oracle, save intervals':24}" + "".join(f"{cost.oracle:16.1f}" for cost in first.values()))
    return "\n".join(lines)


def regret_json(curves: Sequence[Curve], said: By) -> dict[str, dict[str, float]]:
    """The same for --json."""
    return {
        name: {f"{interval}, {part}": cost.regret for (interval, part), cost in of.items()}
        for name, of in _costs(curves, said)
    }
