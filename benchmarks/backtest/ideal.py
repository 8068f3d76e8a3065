"""By when an ideal judge could know of a divergence: the first step at which no harmless curve looks like it.

It knows what nobody has: the labelled onset, and all the harmless curves. Readings are taken in blocks of 8 from the
onset on. At an age in steps a signal is described by two numbers, of the median of the later half of its blocks: how
far it is above its level before the onset (share of the level), and by how many deviations of its noise. Two readings
of "looks like it", at the same age, counted from any of a harmless curve's own blocks:

- ALONE: a signal by itself is as high there in both numbers. Bad data for 300 steps then hides bad data for good.
- TOGETHER: all signals that have risen are at least half as high there, at once. A signal that the harmless curve
  does not log tells nothing apart, and half, since no two rises are alike to a tenth.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .curves import HARMLESS, Curve
from .scoring import onset_of, tolerance

__all__ = ["SIGNALS", "Harmless", "knowable_step", "lost_rows", "overdue_rows", "stretches_of"]

Array = NDArray[np.float64]
BLOCK, BEFORE = 8, 8
"""Readings of a block; blocks before the onset that level and noise are taken from."""

AGES = tuple(8 * n for n in (*range(1, 17), *(round(16 * 1.25**n) for n in range(1, 34))))
"""Steps since the onset at which is compared; 200,000 at most."""

SIGNALS = ("loss", "grad_norm", "adam_variance_l1", "adam_variance_max", "update_norm")
SETTINGS = ("seqlen", "global_batch_samples")


class Harmless:
    """How harmless curves look: for each age a row of (share, deviations) of all signals for each of their blocks."""

    def __init__(self, curves: Iterable[Curve]) -> None:
        found: dict[int, list[Array]] = {}
        self.skipped = 0
        """The longest row of losses that are no number, or of skipped updates."""
        for curve in curves:
            if curve.label not in HARMLESS:
                continue
            self.skipped = max(self.skipped, *(run for _, run in lost_rows(curve)), 0)
            for part in stretches_of(curve):
                for age, rows in _of_all_blocks(curve, part):
                    found.setdefault(age, []).append(rows)
        self._rows = {age: np.concatenate(rows) for age, rows in found.items()}

    def look_like(self, age: int, pairs: Array, *, together: bool) -> bool:
        """Whether one of them looks like these (share, deviations), a row for each signal; nan: not measured."""
        rows = self._rows.get(age)
        if rows is None:
            return False
        if not together:
            known = [i for i, pair in enumerate(pairs) if not np.isnan(pair).any()]
            return all(bool(np.any((rows[:, i] >= pairs[i]).all(axis=1))) for i in known)
        alike = ~np.isnan(rows[:, 0]).any(axis=1)  # where the loss itself is not known, nothing is
        if np.isnan(pairs[0]).any():
            return True
        for i, pair in enumerate(pairs):
            if (pair > 0).all():
                alike &= (rows[:, i] >= pair / 2).all(axis=1) | np.isnan(rows[:, i]).any(axis=1)
        return bool(alike.any())


def knowable_step(curve: Curve, harmless: Harmless, *, together: bool = False) -> int | None:
    """The step; None where the log ends before it."""
    onset = onset_of(curve)
    if onset is None:
        return None
    at = next((i for i, step in enumerate(curve.steps) if step >= onset), len(curve.steps))
    ends = [curve.steps[first + harmless.skipped] for first, run in lost_rows(curve) if run > harmless.skipped]
    blocks = _of_signals(curve, range(at % BLOCK, len(curve.steps)))
    for age, k in _ages(curve):
        pairs = _pairs(blocks, k)[at // BLOCK :]
        if len(pairs) and not np.isnan(pairs[0]).all() and not harmless.look_like(age, pairs[0], together=together):
            ends.append(curve.steps[at + k * BLOCK - 1])
            break
    return min(ends, default=None)


def _ages(curve: Curve) -> Iterable[tuple[int, int]]:
    """Each age in steps with its blocks; none where a block is longer than that."""
    each = ((age, round(age / (BLOCK * curve.log_interval))) for age in AGES)
    return ((age, k) for age, k in each if k)


def lost_rows(curve: Curve) -> list[tuple[int, int]]:
    """(first row, rows) of each stretch without an update or a finite loss."""
    skipped = curve.columns.get("skipped", ())
    runs: list[tuple[int, int]] = []
    begun: int | None = None
    for i, loss in enumerate((*curve.losses, 0.0)):
        lost = (i < len(skipped) and bool(skipped[i])) or loss is None or not math.isfinite(loss)
        if lost and begun is None:
            begun = i
        if not lost and begun is not None:
            runs.append((begun, i - begun))
            begun = None
    return runs


def stretches_of(curve: Curve) -> list[range]:
    """The rows between changes: planned ones, of the settings, of the attempt."""
    attempts = curve.attempts()
    cuts = {0, len(curve.steps)}
    for i in range(1, len(curve.steps)):
        planned = any(curve.steps[i - 1] < step <= curve.steps[i] for step in curve.planned)
        settings = any(_changes(curve.columns.get(name, ()), i) for name in SETTINGS)
        if planned or settings or attempts[i] != attempts[i - 1]:
            cuts.add(i)
    ordered = sorted(cuts)
    return [range(a, b) for a, b in pairwise(ordered)]


def _changes(values: Sequence[float | None], i: int) -> bool:
    return i < len(values) and values[i] != values[i - 1]


def _values(curve: Curve, signal: str) -> Array | None:
    """nan: not measured; what is no number is inf."""
    if not curve.measured(signal):
        return None
    return np.array([math.nan if v is None else v if math.isfinite(v) else math.inf for v in curve.columns[signal]])


class _Blocks:
    """Median of each block, and the noise of one value that its neighbours show."""

    def __init__(self, values: Array) -> None:
        whole = values[: len(values) // BLOCK * BLOCK].reshape(-1, BLOCK)
        self._medians = np.median(whole, axis=1)
        with np.errstate(invalid="ignore"):
            self._noises = 1.05 * np.median(np.abs(np.diff(whole, axis=1)), axis=1)

    def above(self, k: int) -> Array:
        """(blocks - k + 1, 2): share and deviations above the level k blocks on, from each block on; nan: not known."""
        n = len(self._medians) - k + 1
        if n < 1:
            return np.empty((0, 2))
        since = np.median(_windows(self._medians, k - k // 2)[k // 2 : k // 2 + n], axis=1)
        level, noise = (_before(values, blocks)[:n] for values, blocks in ((self._medians, 4), (self._noises, 8)))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.stack([(since - level) / np.where(level > 0, level, np.nan), (since - level) / noise], axis=1)


def _windows(values: Array, size: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(values, size)


def _before(values: Array, blocks: int) -> Array:
    """Median of so many values before each; nan before the first."""
    first = [math.nan, *(float(np.median(values[:i])) for i in range(1, min(blocks, len(values))))]
    if len(values) < blocks:
        return np.array(first)
    return np.concatenate([first, np.median(_windows(values, blocks), axis=1)])[: len(values)]


def _of_signals(curve: Curve, rows: range) -> list[_Blocks | None]:
    """None: not measured."""
    measured = [_values(curve, signal) for signal in SIGNALS]
    return [None if values is None else _Blocks(values[rows.start : rows.stop]) for values in measured]


def _pairs(blocks: Sequence[_Blocks | None], k: int) -> Array:
    """(blocks, signals, 2): see `_Blocks.above`."""
    above = [None if each is None else each.above(k) for each in blocks]
    n = max((len(pairs) for pairs in above if pairs is not None), default=0)
    return np.stack([np.full((n, 2), math.nan) if pairs is None else pairs for pairs in above], axis=1)


def _of_all_blocks(curve: Curve, rows: range) -> Iterable[tuple[int, Array]]:
    if len(rows) < BLOCK:
        return
    blocks = _of_signals(curve, rows)
    overdue = overdue_rows(curve, rows)
    for age, k in _ages(curve):
        pairs = _pairs(blocks, k)
        known = ~np.isnan(pairs).any(axis=2).all(axis=1) & ~overdue[k * BLOCK - 1 :: BLOCK][: len(pairs)]
        if known.any():
            yield age, pairs[known].astype(np.float32)


def overdue_rows(curve: Curve, rows: range) -> NDArray[np.bool_]:
    """Whether a labelled spike has outlasted the deadline there: a verdict then is not counted against a judge."""
    steps = np.array(curve.steps)[rows.start : rows.stop]
    late = [(e.onset + tolerance(curve), e.end) for e in curve.events if e.kind == "spike"]
    return np.any([(a <= steps) & (steps <= b) for a, b in late], axis=0) if late else np.zeros(len(rows), np.bool_)
