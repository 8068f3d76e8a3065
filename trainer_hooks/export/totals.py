"""What an attempt's steps add up to: counters, and the largest values of the last minutes.

A scrape sees one step of many. What a step did must still show at the next scrape, and at that of a second Prometheus:
so a maximum is kept for a stretch of time, and reading it takes nothing away. (One that is reset when it is read
belongs to whoever comes first: a person's curl would hide a spike from the alert.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from sentinel.vocabulary.metrics import INTERVAL_METRICS, SAMPLE_METRICS, WINDOW_MAXIMA
from sentinel.vocabulary.sample import Sample

__all__ = ["SPIKE_RATIO", "Counts", "Totals"]

SPIKE_RATIO = 1.2
"""A step above it counts as a spike step. Source: Li, Zhang & He 2022, Table 1 (arXiv:2108.06084)."""

_SLICES = 12  # parts of a window, each with its own maximum: a maximum shows for one window, and up to a twelfth more
_NEVER = -math.inf
_readings = attrgetter(*(metric.field for metric in WINDOW_MAXIMA))
_at_intervals = attrgetter(*(metric.field for metric in INTERVAL_METRICS))


class Counts(NamedTuple):
    """Steps of the attempt so far."""

    steps: int = 0
    spikes: int = 0
    """With a loss ratio above 1.2; inf, which is that of a loss that is not finite, counts."""

    nonfinite: int = 0
    """With a loss of nan or inf."""

    skipped: int = 0


_NONE = Counts()


@dataclass(frozen=True, slots=True)
class Totals:
    """Up to and with one step. Each step makes a new one: whoever reads it sees one step and no half of the next."""

    window_s: float
    """How long a maximum shows at least."""

    counts: Counts = _NONE
    counted: tuple[Sample | None, Sample | None, Sample | None, Sample | None] = (None, None, None, None)
    """Of each of the counts the last step that it has counted: a scrape shows which, where the format has a place."""

    latest: Sample | None = None
    measured: tuple[float | None, ...] = (None,) * len(INTERVAL_METRICS)
    """Of each of INTERVAL_METRICS the last reading."""

    slices: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """(number of the slice since the clock began, the largest of each of WINDOW_MAXIMA in it), the oldest first."""

    def with_step(self, sample: Sample, now: float) -> Totals:
        """The totals after one more step; `now` is a monotonic clock's, in seconds."""
        ratio, counts = sample.loss_ratio, self.counts
        spike, odd, skipped = ratio is not None and ratio > SPIKE_RATIO, not math.isfinite(sample.loss), sample.skipped
        counts = Counts(counts.steps + 1, counts.spikes + spike, counts.nonfinite + odd, counts.skipped + skipped)
        _, last_spike, last_odd, last_skipped = self.counted
        counted = (
            sample,
            sample if spike else last_spike,
            sample if odd else last_odd,
            sample if skipped else last_skipped,
        )
        number = self._slice(now)
        values = tuple([_badness(reading) for reading in _readings(sample)])
        if self.slices and self.slices[-1][0] == number:
            values = tuple(map(max, self.slices[-1][1], values))
            slices = (*self.slices[:-1], (number, values))
        else:
            slices = (*self.slices[-_SLICES:], (number, values))
        news = _at_intervals(sample)
        measured = tuple([old if new is None else new for old, new in zip(self.measured, news, strict=True)])
        return Totals(
            window_s=self.window_s,
            counts=counts,
            counted=counted,
            latest=sample,
            measured=measured,
            slices=slices,
        )

    def readings(self) -> dict[str, float]:
        """{field: what the latest step says}; of what is measured at intervals, what the last one that did says."""
        if self.latest is None:
            return {}
        readings = {metric.field: getattr(self.latest, metric.field) for metric in SAMPLE_METRICS}
        readings |= {metric.field: value for metric, value in zip(INTERVAL_METRICS, self.measured, strict=True)}
        return {field: float(value) for field, value in readings.items() if value is not None}

    def maxima(self, now: float) -> dict[str, float]:
        """{field: its largest value of the window that ends now}; nan is +inf, what was not measured is left out."""
        oldest = self._slice(now) - _SLICES
        rows = [row for number, row in self.slices if number >= oldest]
        largest = map(max, zip(*rows, strict=True)) if rows else ()
        return {m.field: top for m, top in zip(WINDOW_MAXIMA, largest, strict=False) if top != _NEVER}

    def _slice(self, now: float) -> int:
        return int(now * _SLICES / self.window_s)


def _badness(reading: float | None) -> float:
    """nan is the worst reading: PromQL's max() passes over a nan and no comparison with one holds, so it is +inf."""
    if reading is None:
        return _NEVER
    return math.inf if math.isnan(reading) else reading
