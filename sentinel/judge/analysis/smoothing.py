"""The loss of a whole run as a few thousand means: what another run is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.readings import Readings
from sentinel.judge.reference import Reference

SAMPLES_PER_POINT = 64  # Samples whose mean is one point: a single loss is noise
# Twice as many samples make a point wherever there would be more: months of training are a few hundred kilobytes.
_MOST_POINTS = 4096


@dataclass(frozen=True, slots=True)
class _Point:
    last: float
    middle: float
    mean: float


def smoothed(
    name: str, stretches: Iterable[Readings], *, by: str = "global_step", samples: int = SAMPLES_PER_POINT
) -> Reference:
    """The run's loss along its line of descent, by step or by another column that only grows (consumed_tokens).

    Losses that are not numbers are left out, and so is what has no place on that axis.
    """
    curve = _Curve(samples)
    for readings in stretches:
        places = readings.steps.astype(np.float64) if by == "global_step" else readings.values(by)
        loss = readings.columns["loss"]
        known = np.isfinite(places) & np.isfinite(loss)
        curve.push(places[known], loss[known])
    return Reference(name, [(int(point.middle), point.mean) for point in curve.points()])


class _Curve:
    """Means of so many samples each, and the samples of the next one."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._points: list[_Point] = []
        self._places = self._losses = np.zeros(0)

    def push(self, places: NDArray[np.float64], losses: NDArray[np.float64]) -> None:
        """Takes a stretch; where it begins before what there is, that was taken back."""
        if not len(places):
            return
        while self._points and self._points[-1].last >= places[0]:
            self._points.pop()
        before = self._places < places[0]
        places = np.concatenate((self._places[before], places))
        losses = np.concatenate((self._losses[before], losses))
        whole = len(places) // self._samples * self._samples
        blocks = zip(places[:whole].reshape(-1, self._samples), losses[:whole].reshape(-1, self._samples), strict=True)
        self._points += [_point(at, loss) for at, loss in blocks]
        self._places, self._losses = places[whole:], losses[whole:]
        while len(self._points) > _MOST_POINTS:
            self._thin_out()

    def points(self) -> list[_Point]:
        """All of them; the last of at least half as many samples as the others."""
        rest = 2 * len(self._places) >= self._samples
        return [*self._points, _point(self._places, self._losses)] if rest else self._points

    def _thin_out(self) -> None:
        pairs = zip(self._points[::2], self._points[1::2], strict=False)
        odd = self._points[len(self._points) // 2 * 2 :]
        self._points = [_Point(b.last, (a.middle + b.middle) / 2, (a.mean + b.mean) / 2) for a, b in pairs] + odd
        self._samples *= 2


def _point(places: NDArray[np.float64], losses: NDArray[np.float64]) -> _Point:
    return _Point(float(places[-1]), float(places[len(places) // 2]), float(losses.mean()))
