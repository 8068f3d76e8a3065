"""What a detector's verdicts cost, in save intervals, beside an oracle that knows which spike comes back. Pure.

A rollback throws away the steps from the last save before the onset to the verdict, and takes RESTART of a save
interval to start again. The oracle rolls a divergence back at its labelled onset and nothing else. A divergence that no
verdict is about is rolled back by a person where the log ends. Of verdicts on a harmless curve, and of those before the
onset of a divergence, the first alone is counted: generous to who says many.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sentinel.plan.pooled_spikes import Table
from sentinel.plan.waiting import Moment, is_over, odds_of, priced

from .curves import DIVERGED, Curve
from .episodes import Spike, Traced
from .pooling import at_ages, pooled
from .scoring import Told, is_scored, onset_of, tolerance
from .summing import wilson

__all__ = [
    "INTERVALS",
    "Calibration",
    "Cost",
    "Verdicts",
    "calibration",
    "key",
    "left_out_tables",
    "perfect_verdicts",
    "priced_verdicts",
    "regret",
]

INTERVALS = (300, 1000, 3000)
"""Steps between two saves that are tried; 10 readings where that is longer. Chosen before anything was measured."""

_DRAWS = 1000
RESTART = 0.1
MARGIN_STEPS = 10
PHASES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where between two saves the onset falls: the mean over these."""

Verdicts = Callable[[Curve, float, float], Sequence[Told]]
"""The verdicts on a curve, given the steps from the save to the onset and the steps of a restart."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all curves together, in save intervals."""

    spent: float
    oracle: float

    @property
    def regret(self) -> float:
        """Share of the oracle's cost that was spent beyond it."""
        return (self.spent - self.oracle) / self.oracle if self.oracle else 0.0


def regret(curves: Iterable[Curve], verdicts: Verdicts, interval_steps: int) -> Cost:
    """The detector's cost and the oracle's."""
    spent = oracle = 0.0
    for curve in curves:
        if not is_scored(curve):
            continue
        save = max(interval_steps, 10 * curve.log_interval)
        for phase in PHASES:
            repeat, restart = MARGIN_STEPS + phase * save, RESTART * save
            steps, best = _of(curve, verdicts(curve, repeat, restart), repeat + restart)
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


def priced_verdicts(traced: Traced, table: Table, repeat: float, restart: float) -> list[Told]:
    """The judge's, and the first moment of each spike at which the price ends the wait."""
    found = list(traced.verdicts)
    for spike in traced.spikes:
        over = next((m for m in spike.moments if _is_over(m, table, repeat, restart)), None)
        if over is not None:
            found.append(Told(step=over.step, onset=over.onset_range[0]))
    return found


def perfect_verdicts(traced: Traced) -> list[Told]:
    """Those of who sees the judge's spikes and knows which come back: the first moments of the others."""
    back = [(s.moments[0].step, s.moments[-1].step) for s in traced.spikes if s.never is False]
    wanted = [v for v in traced.verdicts if not any(first <= v.step <= last for first, last in back)]
    firsts = [s.moments[0] for s in traced.spikes if s.never]
    return [*wanted, *(Told(step=m.step, onset=m.onset_range[0]) for m in firsts)]


def _is_over(moment: Moment, table: Table, repeat: float, restart: float) -> bool:
    lost = repeat + moment.step - moment.onset_range[0]
    return is_over(moment, priced(moment, odds_of(moment, table), lost + restart))


def left_out_tables(traces: Sequence[Traced], committed: Table) -> Mapping[str, Table]:
    """For each family a table that has not seen it: for a held-out one the committed table."""
    tuning = [s for t in traces if not t.curve.held_out for s in t.spikes]
    families = {t.curve.family: t.curve.held_out for t in traces}
    return {
        family: committed if held_out else pooled(s for s in tuning if s.family != family)
        for family, held_out in families.items()
    }


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of the predicted shares."""

    lines: tuple[str, ...]
    """A bin each: predicted, mean, share that never came back, its interval, predictions, spikes."""

    error: float
    """|predicted - seen| of the bins, mean over the predictions."""

    error_range: tuple[float, float]
    """95 % of it where as many families are drawn anew: one family's spikes end alike."""

    brier: float


def calibration(traces: Iterable[Traced], tables: Mapping[str, Table], bins: int = 5) -> Calibration:
    """A prediction: that a spike never comes back, at the first moment from each age of the table on."""
    predicted: list[tuple[float, Spike]] = []
    unknown = 0
    for traced in traces:
        for seen in at_ages(traced.spikes):
            odds = odds_of(seen.moment, tables[traced.curve.family])
            unknown += odds is None
            if odds is not None:
                predicted.append((odds.never, seen.spike))
    lines = []
    for n in range(bins):
        some = [(p, spike) for p, spike in predicted if _bin(p, bins) == n]
        if some:
            mean, hits = sum(p for p, _ in some) / len(some), sum(bool(spike.never) for _, spike in some)
            low, high = wilson(hits, len(some))
            lines.append(
                f"{f'{n / bins:.1f} to {(n + 1) / bins:.1f}':12}{mean:8.2f}{hits / len(some):12.2f}"
                f"{f'{low:.2f} to {high:.2f}':>16}{len(some):6}{len({id(spike) for _, spike in some}):8}"
            )
    total = max(1, len(predicted))
    brier = sum((p - bool(spike.never)) ** 2 for p, spike in predicted) / total
    return Calibration((*lines, f"unknown: {unknown}"), _error(predicted, bins), _error_range(predicted, bins), brier)


def _bin(share: float, bins: int) -> int:
    return min(bins - 1, int(share * bins))


def _error(predicted: Sequence[tuple[float, Spike]], bins: int) -> float:
    off = [0.0] * bins
    for share, spike in predicted:
        off[_bin(share, bins)] += share - bool(spike.never)
    return sum(map(abs, off)) / max(1, len(predicted))


def _error_range(predicted: Sequence[tuple[float, Spike]], bins: int) -> tuple[float, float]:
    families: dict[str, list[tuple[float, Spike]]] = {}
    for each in predicted:
        families.setdefault(each[1].family, []).append(each)
    if not families:
        return 0.0, 0.0
    drawn, groups = random.Random(0), list(families.values())  # noqa: S311 - a bootstrap
    errors = sorted(
        _error([p for group in drawn.choices(groups, k=len(groups)) for p in group], bins) for _ in range(_DRAWS)
    )
    return errors[_DRAWS // 40], errors[-_DRAWS // 40 - 1]
