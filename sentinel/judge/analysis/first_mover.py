"""Around an incident: which signal left its own noise first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentinel.judge.analysis.departures import Departure, FirstMoved
from sentinel.judge.analysis.instability import instability_before
from sentinel.judge.noise_band import MAD_TO_SIGMA
from sentinel.judge.readings import Readings

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Mask = NDArray[np.bool_]
WINDOW_STEPS = 100  # How far before the onset a departure is looked for
# What is looked at, where measured; fields of Sample. The loss too, for comparison.
SIGNALS = (
    *("adam_variance_l1", "adam_variance_max", "grad_norm", "update_norm", "loss_spread", "grad_norm_spread"),
    *("attention_logit_max", "output_logit_max", "loss_scale", "lr", "loss"),
)
_QUIET_WINDOWS = 5  # The quiet stretch before the window is this many times as long
_REHEARSALS = 5  # How many windows before the window the same question is asked of
_CHANCE = 0.01  # Single exceedances to be expected by chance over the window, per signal, both sides together
_FLOOR = 0.03  # A departure is at least this share of the level: a smooth signal always leaves its noise
_MARGIN = 2.0  # How much farther than ever before: getting there again is no news
_MIN_QUIET = 3
_MIN_QUIET_FOR_TREND = 12


def moved_before(stretches: Sequence[Readings], onset_range: tuple[int, int], clip: float | None = None) -> FirstMoved:
    """What moved first, for the record: from 100 steps before the early end of the onset up to its late end, which the
    steps are counted back from. `stretches`: one lineage, from `reads_from` on. `clip`: see `instability_before`."""
    early, late = onset_range
    found = first_moved_of_readings(stretches, onset_step=late, window_steps=WINDOW_STEPS + late - early)
    return replace(found, instability=instability_before(stretches, onset_range, clip, reads_from(onset_range)))


def reads_from(onset_range: tuple[int, int]) -> int:
    """The first step whose readings `moved_before` looks at."""
    early, late = onset_range
    return late - (1 + _QUIET_WINDOWS + _REHEARSALS) * (WINDOW_STEPS + late - early)


def first_moved_of_readings(
    stretches: Sequence[Readings], *, onset_step: int, window_steps: int = WINDOW_STEPS
) -> FirstMoved:
    """The same of one lineage. What was not measured is left out, skipped steps but for their loss scale."""
    columns, measured = {}, {}
    for name in SIGNALS:
        there = [np.logical_and(r.has(name), True if name == "loss_scale" else r.updated) for r in stretches]
        if any(t.any() for t in there):
            columns[name] = np.concatenate([r.values(name) for r in stretches])
            measured[name] = np.concatenate(there)
    steps = np.concatenate([r.steps for r in stretches])
    return first_moved(columns, steps, onset_step=onset_step, window_steps=window_steps, measured=measured)


def first_moved(
    columns: Mapping[str, ArrayLike],
    steps: ArrayLike,
    *,
    onset_step: int,
    window_steps: int = WINDOW_STEPS,
    measured: Mapping[str, ArrayLike] | None = None,
    quiet: ArrayLike | None = None,
) -> FirstMoved:
    """When each column, (n,) in the order of its steps, first left its own noise in the window before the onset.

    A reading has left when it lies k robust deviations from the line that the quiet stretch follows (five windows
    before the window; `quiet`, (n,) of bool, names another), and one of the next two readings does too, on the same
    side. k is the larger of

    - Student's quantile at which all readings of the window together give 0.01 exceedances by chance, were the noise
      normal;
    - double the farthest that the signal got in this way, two readings of three, in the quiet stretch itself and in
      five windows before, each judged from the five before it: heavy tails, wandering, bends, and spikes that healed.

    When it left is then the first of the readings in a row beyond Student's quantile. A reading that is nan or inf has
    left, by itself. Of a hundred signals that are noise alone, the list names less than one, nine where they wander for
    longer than the stretch (AR(1) with phi 0.99, a random walk): 1000 simulations.
    """
    at = np.asarray(steps, dtype=np.int64)
    calm = _quiet_before(at, onset_step, window_steps) if quiet is None else np.asarray(quiet, dtype=np.bool_)
    window = (at >= onset_step - window_steps) & (at <= onset_step)
    found, stayed, unjudged = [], [], []
    for name, column in columns.items():
        values = np.asarray(column, dtype=np.float64)
        there = np.ones(len(at), dtype=np.bool_) if measured is None else np.asarray(measured[name], dtype=np.bool_)
        if (calm & there & np.isfinite(values)).sum() < _MIN_QUIET or not (window & there).any():
            unjudged.append(name)
            continue
        farthest = _rehearsed(values[there], at[there], onset_step, window_steps) if quiet is None else (0.0, 0.0)
        departure = _departure(name, values[there], at[there], calm[there], window[there], onset_step, farthest)
        if departure is None:
            stayed.append(name)
        else:
            found.append(departure)
    ranked = sorted(found, key=lambda d: (d.first_step, -abs(d.deviations)))
    return FirstMoved(departures=tuple(ranked), stayed=tuple(stayed), unjudged=tuple(unjudged))


def _quiet_before(steps: Steps, onset_step: int, window_steps: int) -> Mask:
    begins = onset_step - window_steps
    return (steps < begins) & (steps >= begins - _QUIET_WINDOWS * window_steps)


def _rehearsed(values: Floats, steps: Steps, onset_step: int, window_steps: int) -> tuple[float, float]:
    up = down = 0.0
    for earlier in range(1, _REHEARSALS + 1):
        onset = onset_step - earlier * window_steps
        window = (steps > onset - window_steps) & (steps <= onset)
        calm = _quiet_before(steps, onset, window_steps) & np.isfinite(values)
        if calm.sum() < _MIN_QUIET_FOR_TREND or not window.any():
            break
        deviations = _deviations(values, steps, calm, _edge(calm, window))[window]
        deviations = deviations[np.isfinite(deviations)]
        up = max(up, float(np.max(_twice_in_three(deviations), initial=0.0)))
        down = max(down, float(np.max(_twice_in_three(-deviations), initial=0.0)))
    return up, down


def _edge(calm: Mask, window: Mask) -> float:
    """Student's quantile for all of the window's readings together, the line itself being an estimate too."""
    from scipy import special  # a fifth of a second, which commands that ask for no analysis do not pay

    n = int(calm.sum())
    quantile = special.stdtrit(max(1, n - 1), 1 - _CHANCE / (2 * int(window.sum())))
    return float(quantile) * math.sqrt(1 + math.pi / 2 / n)  # a line is about as sure as a median


def _departure(
    name: str,
    values: Floats,
    steps: Steps,
    calm: Mask,
    window: Mask,
    onset_step: int,
    farthest: tuple[float, float],
) -> Departure | None:
    calm = calm & np.isfinite(values)
    edge = _edge(calm, window)
    deviations = _deviations(values, steps, calm, edge)
    first = None
    for side in (1, -1):
        twice = _twice_in_three(side * deviations)
        ever = max(farthest[side < 0], float(np.max(twice[calm & ~window], initial=0.0)))
        beyond = max(edge, _MARGIN * ever)
        left = np.flatnonzero(window & ((twice > beyond) | ~np.isfinite(values)))
        if len(left) and (first is None or left[0] < first[0]):
            first = left[0], side
    if first is None:
        return None
    place, side = first
    inside = np.flatnonzero(~(window & (side * deviations > edge))[:place])
    place = inside[-1] + 1 if len(inside) else 0  # that it has left is known; when it left is a smaller question
    since = window & (steps >= steps[place])
    return Departure(
        signal=name,
        first_step=int(steps[place]),
        steps_before_onset=onset_step - int(steps[place]),
        deviations=side * float(np.max(side * deviations[since])) if np.isfinite(values[since]).all() else math.inf,
    )


def _deviations(values: Floats, steps: Steps, calm: Mask, edge: float) -> Floats:
    """How many robust deviations each reading lies from the quiet readings' line; inf where it is not a number.

    Logarithms where all quiet readings are above 0: these signals change by factors. The deviation: 1.4826 times the
    median absolute deviation from the line, and at least that of neighbours' differences over sqrt(2), as in
    `NoiseBand`; 3 % of the level count as `edge` deviations at least.
    """
    if logarithmic := bool((values[calm] > 0).all()):
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(values)
    around = values - _trend(values[calm], steps[calm].astype(np.float64), steps.astype(np.float64))
    level = float(np.median(values[calm]))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(around[calm])))
    jitter = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(around[calm])))) / math.sqrt(2)
    floor = _FLOOR * (1.0 if logarithmic else abs(level)) / edge
    sigma = max(spread, jitter, floor, np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):  # a signal that was 0 has no noise: whatever it moves to is inf away
        return np.where(np.isfinite(around), around / sigma, np.where(np.isneginf(around), -np.inf, np.inf))


def _trend(y: Floats, t: Floats, at: Floats) -> Floats:
    """The quiet readings' course, carried on: the median slope of readings half the stretch apart; level where few.
    Source: Theil 1950, "A rank-invariant method of linear and polynomial regression analysis", the abridged method."""
    half = len(y) // 2
    apart = t[half:] - t[: len(t) - half]
    if len(y) < _MIN_QUIET_FOR_TREND or not (apart > 0).all():
        return np.full(len(at), np.median(y))
    slope = float(np.median((y[half:] - y[: len(y) - half]) / apart))
    found: Floats = float(np.median(y - slope * t)) + slope * at
    return found


def _twice_in_three(deviations: Floats) -> Floats:
    after = np.concatenate((deviations, [-np.inf, -np.inf]))
    found: Floats = np.minimum(deviations, np.maximum(after[1:-1], after[2:]))
    return found
