"""Which signal passed its limit before the onset, by how many steps, and how often in healthy runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import beta

from benchmarks.curvature.measured import EVERY

__all__ = ["OTHERS", "RULES", "Seen", "Tally", "apart", "tally", "tuned", "warnings_of"]

PER_STEPS = 10_000
APART_STEPS = 256
"""After a warning, steps above the limit in which a rule does not warn again: as benchmarks/early_warning.py has it."""

OTHERS = ("attention logits", "variance alone", "early warning")
"""The judge's own, with its own limits; the last is of variance, gradient, update and loss together."""

Readings = Sequence[tuple[int, float]]
"""(step, ratio), ascending."""

RULES: Mapping[str, tuple[str, int]] = {
    "along the gradient": ("curvature_gradient", 1),
    "along the gradient, 3 in a row": ("curvature_gradient", 3),
    "along the update": ("curvature_update", 1),
    "along the update, 3 in a row": ("curvature_update", 3),
}
"""The column, and how many measurements in a row have to be above the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One run: what hindsight and the judge say of it, and its curvature."""

    task: str
    draw: int
    seed: int
    steps: int
    onset: int | None
    """As the judge dates it; where it gives no verdict, the validation loss's; None where the run has neither."""

    by_judge: bool
    curvature: Mapping[str, Readings]
    others: Mapping[str, tuple[int, ...]]
    """Steps of the warnings of OTHERS."""


def warnings_of(seen: Seen, rule: str, limit: float = 1.0, every: int = EVERY) -> tuple[int, ...]:
    """Steps at which `rule` warns with this limit of the ratio, of each `every`-th step's measurement. A ratio that is
    not a number is above it."""
    if rule in seen.others:
        return seen.others[rule]
    column, in_a_row = RULES[rule]
    above = 0
    passed = []
    for step, ratio in seen.curvature[column]:
        if step % every:
            continue
        above = 0 if ratio <= limit else above + 1
        if above >= in_a_row:
            passed.append(step)
    return apart(passed)


def apart(steps: Sequence[int]) -> tuple[int, ...]:
    """The first of steps that follow each other within APART_STEPS."""
    return tuple(step for at, step in enumerate(steps) if not at or step - steps[at - 1] >= APART_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One rule on a set of runs."""

    rule: str
    limit: float
    leads: tuple[int, ...]
    """Steps from the first warning to the onset, of the runs that have one and were warned before it."""

    with_onset: int
    warned: int
    """Runs that were warned at any time, with an onset or without."""

    of_runs: int
    alone: int
    """Of these runs, those in which no signal of OTHERS had warned by the onset."""

    false: int
    healthy_steps: int

    def row(self) -> dict[str, Any]:
        low, high = _clopper_pearson(self.false, self.healthy_steps)
        return {
            "rule": self.rule,
            "limit": self.limit,
            "before_onset": len(self.leads),
            "with_onset": self.with_onset,
            "warned": self.warned,
            "of_runs": self.of_runs,
            "median_lead_steps": statistics.median(self.leads) if self.leads else None,
            "alone": self.alone,
            "false": self.false,
            "healthy_steps": self.healthy_steps,
            "false_per_10000": PER_STEPS * self.false / max(1, self.healthy_steps),
            "false_per_10000_95": [PER_STEPS * low, PER_STEPS * high],
        }


def tally(rule: str, ill: Sequence[Seen], healthy: Sequence[Seen], *, limit: float = 1.0, every: int = EVERY) -> Tally:
    """Of the runs in `ill` those that have an onset count; in `healthy` each warning is a false one."""
    leads, alone = [], 0
    with_onset = [(one, one.onset) for one in ill if one.onset is not None]
    for one, onset in with_onset:
        before = [step for step in warnings_of(one, rule, limit, every) if step < onset]
        if before:
            leads.append(onset - before[0])
            alone += not any(step < onset for steps in one.others.values() for step in steps)
    return Tally(
        rule=rule,
        limit=limit,
        leads=tuple(leads),
        with_onset=len(with_onset),
        warned=sum(bool(warnings_of(one, rule, limit, every)) for one in ill),
        of_runs=len(ill),
        alone=alone,
        false=sum(len(warnings_of(one, rule, limit, every)) for one in healthy),
        healthy_steps=sum(one.steps for one in healthy),
    )


def tuned(rule: str, healthy: Sequence[Seen]) -> float:
    """The lowest limit, in steps of a tenth from 0.1, with at most one false warning in PER_STEPS healthy steps; inf
    where none up to 1000 has."""
    return _lowest(lambda limit: tally(rule, [], healthy, limit=limit))


def _lowest(of: Callable[[float], Tally]) -> float:
    low, high = 1, 10_001
    while low < high:
        middle = (low + high) // 2
        found = of(middle / 10)
        enough = found.false * PER_STEPS <= found.healthy_steps
        low, high = (low, middle) if enough else (middle + 1, high)
    return math.inf if low > 10_000 else low / 10


def _clopper_pearson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, of - hits + 1))
    return low, 1.0 if hits == of else float(beta.ppf(0.975, hits + 1, of - hits))
