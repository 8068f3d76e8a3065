"""How soon a sequential test could know of a divergence that is told what nobody knows: onset, course, noise.

The test is Page's CUSUM of the log likelihood ratio (Page 1954; optimal for a known change, Moustakides 1986). Of each
signal, in the logarithm where it is positive, as it is the signals' own unit:

    z(k) = (x(k) - m) / s          k readings after the onset
    d(k) = (f(k) - m) / s          the course that the signal really took
    S(k) = max(0, S(k - 1) + sum over signals of d min(z, d) - d² / 2)
    known at the first k with S(k) > h

m: median of the last 32 readings before the onset. s: `robust_sigma` of the last 96 of them or, if larger,
`wandering_sigma`: noise that stays alike counts as the noise of few readings. f: running median of nine readings, where
above m. min(z, d): of normal noise alone the test has z in its place; with outliers in the noise, one high reading may
say no more for a divergence than the divergence itself does.

h: the highest S that any harmless stretch reaches under the same d, counted from any block of eight of its readings; at
least ln(n) of the n readings of all of them, the threshold at which Page's test alarms once in n readings of noise
alone. So no harmless curve is called: as few as a judge calls in vain whose own unneeded and overdue curves are left
out (`besides`). A signal that the harmless curve does not log tells nothing apart: it has z = d there.

`noise_only` has h = ln(n) alone: what could be known if no run had spikes.

Pure.
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
    """Readings after the onset at which each test knows, the first reading at the onset being 1; None: never."""

    loss_alone: int | None
    all_signals: int | None
    noise_only: int | None


class Noise:
    """The harmless stretches, by the steps between two readings: z of each signal from each of their blocks on."""

    def __init__(self, curves: Iterable[Curve], besides: frozenset[tuple[str, str]] = frozenset()) -> None:
        self._curves = [c for c in curves if c.label in HARMLESS and (c.folder, c.name) not in besides]
        self._by_interval: dict[int, list[NDArray[np.float32]]] = {}
        self.readings = sum(len(c.steps) for c in self._curves)
        self.skipped = max((run for c in self._curves for _, run in lost_rows(c)), default=0)

    def at(self, interval: int) -> list[NDArray[np.float32]]:
        """Per signal (starts, LONGEST); nan after a stretch's end and where it is not logged."""
        if interval not in self._by_interval:
            parts = [part for c in self._curves for part in _windows_of(c, interval)]
            self._by_interval[interval] = [np.concatenate([p[i] for p in parts]) for i in range(len(SIGNALS))]
        return self._by_interval[interval]


def knowable(curve: Curve, noise: Noise) -> Known | None:
    """Of a divergence; None where too little is before its onset for a level."""
    onset = onset_of(curve)
    if onset is None:
        return None
    at = next((i for i, step in enumerate(curve.steps) if step >= onset), len(curve.steps))
    values = {name: _log(curve, name) for name in SIGNALS}
    before = {name: _before(v[:at]) for name, v in values.items() if v is not None}
    lost = [first - at + noise.skipped + 1 for first, run in lost_rows(curve) if first >= at and run > noise.skipped]
    if before.get("loss") is None:
        return None
    courses = {
        name: (_standard(values[name][at:], known), _course(values[name][at:], known))  # type: ignore[index]
        for name, known in before.items()
        if known is not None
    }
    least = math.log(noise.readings)
    harmless = noise.at(curve.log_interval)
    highest = [_highest(harmless, courses, only) for only in (("loss",), SIGNALS)]
    alone, every = (_first_above(courses, only, max(h, least)) for only, h in zip((("loss",), SIGNALS), highest))
    return Known(
        _sooner(alone, lost), _sooner(every, lost), _sooner(_first_above(courses, SIGNALS, least), lost)
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


def _first_above(courses: dict[str, tuple[Array, Array]], only: tuple[str, ...], h: float) -> int | None:
    gains = sum(
        np.where(np.isnan(z), 0.0, d * np.minimum(z, d) - d * d / 2) for n, (z, d) in courses.items() if n in only
    )
    statistic = _cusum(np.asarray(gains)[None, :])[0]
    above = np.flatnonzero(statistic > h)
    return int(above[0]) + 1 if len(above) else None


def _highest(harmless: list[NDArray[np.float32]], courses: dict[str, tuple[Array, Array]], only: tuple[str, ...]) -> float:
    if not len(harmless[0]):
        return 0.0
    gains, ends = np.zeros_like(harmless[0]), np.isnan(harmless[0])
    for i, name in enumerate(SIGNALS):
        if name in only and name in courses:
            d = courses[name][1].astype(np.float32)
            z = harmless[i][:, : len(d)]
            z = np.where(np.isnan(z), d, z)
            gains[:, : len(d)] += d * np.minimum(z, d) - d * d / 2
    gains[ends] = 0.0
    return float(_cusum(gains[:, : len(courses["loss"][1])]).max())


def _cusum(gains: Array) -> Array:
    sums = np.cumsum(gains, axis=1, dtype=np.float64)
    return sums - np.minimum(np.minimum.accumulate(sums, axis=1), 0.0)


def _windows_of(curve: Curve, interval: int) -> Iterable[list[NDArray[np.float32]]]:
    every, repeat = max(1, round(interval / curve.log_interval)), max(1, round(curve.log_interval / interval))
    overdue = overdue_rows(curve, range(len(curve.steps)))
    values = [_log(curve, name) for name in SIGNALS]
    for rows in stretches_of(curve):
        taken = list(rows)[::every]
        starts = range(BLOCK, len(taken), BLOCK)
        if not len(starts):
            continue
        yield [_rows_from(v, taken, starts, repeat, overdue) for v in values]


def _rows_from(
    values: Array | None, taken: list[int], starts: range, repeat: int, overdue: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """(starts, LONGEST): z of the readings from each start on. A labelled spike ends a row where it is overdue."""
    found = np.full((len(starts), LONGEST), np.nan, dtype=np.float32)
    if values is None:
        return found
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
