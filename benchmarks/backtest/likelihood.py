"""How soon a sequential test could know of a divergence that is told what nobody knows: onset, course, noise.

The test is Page's CUSUM of the log likelihood ratio (Page 1954; optimal for a known change, Moustakides 1986), on
logarithms:

    z(k) = (x(k) - m) / s          k readings from the onset on
    d(k) = (f(k) - m) / s          the course that the loss really took
    S(k) = max(0, S(k - 1) + d min(z, d) - d**2 / 2)
    known at the first k with S(k) > h

m: median of the last 32 readings before the onset. s: `robust_sigma` of the last 96 of them or, if larger,
`wandering_sigma`: noise that stays alike is that of fewer readings. f: running median of nine readings, where above m.
min(z, d): for normal noise alone the test has z there; so one high reading of a spike counts for no more than one of
the divergence.

h of `loss`: the highest S that any harmless stretch reaches under the same d, counted from any block of eight of its
readings, and at least ln(n) of the n readings of all of them, the threshold at which Page's test alarms about once in
so many readings of noise. So it calls no harmless curve; those that the judge itself calls are left out (`besides`), so
that both call as many. h of `noise_only`: ln(n), with the gains of all signals added up: what could be known if no run
had spikes. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.noise_band import robust_sigma, wandering_sigma

from .curves import HARMLESS, Curve
from .ideal import SIGNALS, lost_rows, overdue_rows, stretches_of
from .scoring import onset_of

__all__ = ["Known", "Noise", "knowable"]

Array = NDArray[np.float64]
BLOCK = 8
LEVEL, NOISE = 32, 96
"""Readings before the onset that m and s are taken from."""

LONGEST = 1024
"""Readings after an onset that are compared."""

SMOOTH = 9
"""Readings of the running median that is the course."""


@dataclass(frozen=True, slots=True)
class Known:
    """Readings after that of the onset at which each test knows; None: never."""

    loss: int | None
    noise_only: int | None


class Noise:
    """The harmless stretches, by the steps between two readings: z of each signal from each of their blocks on."""

    def __init__(self, curves: Iterable[Curve], besides: frozenset[tuple[str, str]] = frozenset()) -> None:
        self._curves = [c for c in curves if c.label in HARMLESS and (c.folder, c.name) not in besides]
        self._by_interval: dict[int, NDArray[np.float32]] = {}
        self.readings = sum(len(c.steps) for c in self._curves)
        self.skipped = max((run for c in self._curves for _, run in lost_rows(c)), default=0)

    def at(self, interval: int) -> NDArray[np.float32]:
        """(starts, LONGEST): z of the loss; nan after a stretch's end."""
        if interval not in self._by_interval:
            parts = [part for c in self._curves for part in _windows_of(c, interval)]
            self._by_interval[interval] = np.concatenate([np.empty((0, LONGEST), np.float32), *parts])
        return self._by_interval[interval]


def knowable(curve: Curve, noise: Noise) -> Known | None:
    """Of a divergence; None where too little is before its onset for a level."""
    onset = onset_of(curve)
    if onset is None:
        return None
    at = next((i for i, step in enumerate(curve.steps) if step >= onset), len(curve.steps))
    values = {name: _log(curve, name) for name in SIGNALS}
    before = {name: _before(v[:at]) for name, v in values.items() if v is not None}
    lost = [first - at + noise.skipped for first, run in lost_rows(curve) if first >= at and run > noise.skipped]
    if before.get("loss") is None:
        return None
    courses = {
        name: (_standard(values[name][at:], known), _course(values[name][at:], known))  # type: ignore[index]
        for name, known in before.items()
        if known is not None
    }
    least = math.log(noise.readings)
    highest = _highest(noise.at(curve.log_interval), courses["loss"][1])
    return Known(
        _sooner(_first_above({"loss": courses["loss"]}, max(highest, least)), lost),
        _sooner(_first_above(courses, least), lost),
    )


def _sooner(found: int | None, lost: list[int]) -> int | None:
    return min([*lost, *([] if found is None else [found])], default=None)


def _log(curve: Curve, signal: str) -> Array | None:
    """Logarithms; nan: not measured or no number."""
    if not curve.measured(signal):
        return None
    raw = np.array([math.nan if v is None or not math.isfinite(v) or v <= 0 else v for v in curve.columns[signal]])
    return np.log(raw)


def _before(values: Array) -> tuple[float, float] | None:
    """Level and noise; None for fewer than eight readings."""
    known = values[~np.isnan(values)][-NOISE:]
    if len(known) < BLOCK:
        return None
    rows = known.tolist()
    noise = max(robust_sigma(np.abs(np.diff(known)).tolist()), wandering_sigma(rows, (8, 16)))
    return float(np.median(known[-LEVEL:])), max(noise, 1e-6)


def _standard(values: Array, known: tuple[float, float]) -> Array:
    return (values[:LONGEST] - known[0]) / known[1]


def _course(values: Array, known: tuple[float, float]) -> Array:
    z = _standard(values, known)
    half = SMOOTH // 2
    padded = np.pad(z, half, mode="edge") if len(z) else z
    windows = np.lib.stride_tricks.sliding_window_view(padded, SMOOTH) if len(z) else np.empty((0, SMOOTH))
    with np.errstate(all="ignore"):
        course = np.array([np.nanmedian(w) if not np.isnan(w).all() else 0.0 for w in windows])
    return np.maximum(course, 0.0)


def _first_above(courses: dict[str, tuple[Array, Array]], h: float) -> int | None:
    gains = [np.where(np.isnan(z), 0.0, d * np.minimum(z, d) - d * d / 2) for z, d in courses.values()]
    above = np.flatnonzero(_cusum(np.sum(gains, axis=0)[None, :])[0] > h)
    return int(above[0]) if len(above) else None


def _highest(harmless: NDArray[np.float32], d: Array) -> float:
    z = harmless[:, : len(d)]
    gains = np.where(np.isnan(z), 0.0, d * np.minimum(z, d) - d * d / 2)
    return float(_cusum(gains).max(initial=0.0))


def _cusum(gains: Array) -> Array:
    sums = np.cumsum(gains, axis=1, dtype=np.float64)
    return sums - np.minimum(np.minimum.accumulate(sums, axis=1), 0.0)


def _windows_of(curve: Curve, interval: int) -> Iterable[NDArray[np.float32]]:
    every, repeat = max(1, round(interval / curve.log_interval)), max(1, round(curve.log_interval / interval))
    overdue = overdue_rows(curve, range(len(curve.steps)))
    values = _log(curve, "loss")
    for rows in stretches_of(curve):
        taken = list(rows)[::every]
        starts = range(BLOCK, len(taken), BLOCK)
        if len(starts) and values is not None:
            yield _rows_from(values, taken, starts, repeat, overdue)


def _rows_from(
    values: Array, taken: list[int], starts: range, repeat: int, overdue: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """(starts, LONGEST): z of the readings from each start on. A labelled spike ends a row where it is overdue."""
    found = np.full((len(starts), LONGEST), np.nan, dtype=np.float32)
    column, late = values[taken], overdue[taken]
    for i, start in enumerate(starts):
        known = _before(column[max(0, start - 2 * NOISE) : start])
        if known is None:
            continue
        after = np.where(late[start:], np.nan, column[start:])
        cut = np.flatnonzero(late[start:])
        after = after[: cut[0]] if len(cut) else after
        row = _standard(np.repeat(after, repeat), known)
        found[i, : len(row)] = row
    return found
