"""Other runs' losses: one as a few thousand means, what a run is compared with, and several runs at the same step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.readings import Readings


class Reference:
    def __init__(self, name: str, points: Sequence[tuple[int, float]]) -> None:
        self.name, self.points = name, list(points)

    @property
    def ends(self) -> tuple[int, int] | None:
        return (self.points[0][0], self.points[-1][0]) if self.points else None

    def loss(self, step: int) -> float | None:
        """The reference's loss at the step, interpolated; None outside of what is known of it."""
        if self.ends is None or not self.ends[0] <= step <= self.ends[1]:
            return None
        steps, losses = zip(*self.points, strict=True)
        return float(np.interp(step, steps, losses))


SAMPLES_PER_POINT = 64  # Samples whose mean is one point: a single loss is noise
_MOST_POINTS = 4096  # Wherever there would be more, twice as many samples make a point


_Point = tuple[float, float, float]  # The last place, the middle one, and the mean of the losses


def smoothed(
    name: str, stretches: Iterable[Readings], *, by: str = "global_step", samples: int = SAMPLES_PER_POINT
) -> Reference:
    """The run's loss along its lineage, by step or by another column that only grows (consumed_tokens); losses
    that are not numbers, or have no place on that axis, are left out."""
    curve = _Curve(samples)
    for readings in stretches:
        places = readings.steps.astype(np.float64) if by == "global_step" else readings.values(by)
        loss = readings.columns["loss"]
        known = np.isfinite(places) & np.isfinite(loss)
        curve.push(places[known], loss[known])
    return Reference(name, [(int(middle), mean) for _, middle, mean in curve.points()])


class _Curve:
    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._points: list[_Point] = []
        self._places = self._losses = np.zeros(0)

    def push(self, places: NDArray[np.float64], losses: NDArray[np.float64]) -> None:
        """Takes a stretch; where it begins before what there is, that was taken back."""
        if not len(places):
            return
        while self._points and self._points[-1][0] >= places[0]:
            self._points.pop()
        before = self._places < places[0]
        places = np.concatenate((self._places[before], places))
        losses = np.concatenate((self._losses[before], losses))
        whole = len(places) // self._samples * self._samples
        blocks = zip(places[:whole].reshape(-1, self._samples), losses[:whole].reshape(-1, self._samples), strict=True)
        self._points += [_point(at, loss) for at, loss in blocks]
        self._places, self._losses = places[whole:], losses[whole:]
        while len(self._points) > _MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            odd = self._points[len(self._points) // 2 * 2 :]
            self._points = [(b[0], (a[1] + b[1]) / 2, (a[2] + b[2]) / 2) for a, b in pairs] + odd
            self._samples *= 2

    def points(self) -> list[_Point]:
        rest = 2 * len(self._places) >= self._samples
        return [*self._points, _point(self._places, self._losses)] if rest else self._points


def _point(places: NDArray[np.float64], losses: NDArray[np.float64]) -> _Point:
    return float(places[-1]), float(places[len(places) // 2]), float(losses.mean())


_A_LEAD = 0.005  # Share of the loss below which nobody leads: what the judge, too, calls no offset
_PER_DECADE = (1, 2, 3, 5, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    at: int  # The global step, or the consumed tokens
    losses: tuple[float | None, ...]  # Smoothed, nats, in the order of the runs; None where a run says nothing
    ratios: tuple[float | None, ...]  # Each run's loss over the first run's; None where either says nothing
    leader: str | None  # The run with the smallest loss; None where the next one is within half a percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
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
