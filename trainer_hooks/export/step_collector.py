"""From the attempt's steps to metric families, built at each scrape. A scrape sees one step of many, so a step must
still show at the next scrape, and at that of a second Prometheus: a maximum is kept for a stretch of time, and reading
it resets nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from sentinel.vocabulary import metrics
from sentinel.vocabulary.loss_ratio import SPIKE_RATIO
from sentinel.vocabulary.sample import LayerVariance, Sample

_HELP = {metric.name: metric.help for metric in metrics.all_metrics()}
_LABELS = ["run", "attempt"]

_SLICES = 12  # parts of a window, each with its own maximum: a maximum shows for one window, and up to a twelfth more
_NEVER = -math.inf
_readings = attrgetter(*(metric.field for metric in metrics.WINDOW_MAXIMA))
_at_intervals = attrgetter(*(metric.field for metric in metrics.INTERVAL_METRICS))


@dataclass(frozen=True, slots=True)
class Totals:
    """Up to and with one step. Each step makes a new object, so a reader never sees half of a step."""

    window_s: float  # How long a maximum shows at least
    counts: tuple[int, ...] = (0,) * len(metrics.COUNTERS)  # Of each of COUNTERS the steps of the attempt so far
    counted: tuple[Sample | None, ...] = (None,) * len(metrics.COUNTERS)  # Of each the last step, for exemplars
    latest: Sample | None = None
    # Of each of INTERVAL_METRICS the last reading.
    measured: tuple[float | None, ...] = (None,) * len(metrics.INTERVAL_METRICS)
    # (number of the slice since the clock began, the largest of each of WINDOW_MAXIMA in it), the oldest first.
    slices: tuple[tuple[int, tuple[float, ...]], ...] = ()

    def with_step(self, sample: Sample, now: float) -> Totals:
        """The totals after one more step; `now` is a monotonic clock's, in seconds."""
        ratio = sample.loss_ratio
        hits = (True, ratio is not None and ratio > SPIKE_RATIO, not math.isfinite(sample.loss), sample.skipped)
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
            counts=tuple([count + hit for count, hit in zip(self.counts, hits, strict=True)]),
            counted=tuple([sample if hit else last for last, hit in zip(self.counted, hits, strict=True)]),
            latest=sample,
            measured=measured,
            slices=slices,
        )

    def readings(self) -> dict[str, float]:
        """{field: the latest step's reading}; of what is measured at intervals, the last measured one."""
        if self.latest is None:
            return {}
        readings = {metric.field: getattr(self.latest, metric.field) for metric in metrics.SAMPLE_METRICS}
        readings |= {metric.field: value for metric, value in zip(metrics.INTERVAL_METRICS, self.measured, strict=True)}
        return {field: float(value) for field, value in readings.items() if value is not None}

    def maxima(self, now: float) -> dict[str, float]:
        """{field: its largest value of the window that ends now}; nan is +inf, what was not measured is left out."""
        oldest = self._slice(now) - _SLICES
        rows = [row for number, row in self.slices if number >= oldest]
        largest = map(max, zip(*rows, strict=True)) if rows else ()
        return {m.field: top for m, top in zip(metrics.WINDOW_MAXIMA, largest, strict=False) if top != _NEVER}

    def _slice(self, now: float) -> int:
        return int(now * _SLICES / self.window_s)


def _badness(reading: float | None) -> float:
    """nan is the worst reading: PromQL's max() passes over a nan and no comparison with one holds, so it is +inf."""
    if reading is None:
        return _NEVER
    return math.inf if math.isnan(reading) else reading


class StepCollector(Collector):
    """Takes each step on the training thread, and shows it on the exporter's: a scrape never mixes two steps. The
    threads share one reference to an immutable Totals, so neither waits for the other."""

    def __init__(
        self,
        run: str,
        attempt: int,
        *,
        errors: Callable[[], int] = lambda: 0,
        layers: Callable[[], LayerVariance | None] = lambda: None,
        window_s: float = 120.0,
        most_layers: int = 128,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= window_s < math.inf:
            raise ValueError(f"window_s is a number of seconds, 1 or more, not {window_s!r}")
        self._labels = [run, str(attempt)]
        self._errors = errors
        self._layers = layers
        self._most_layers = most_layers  # with more than these, the layers are in the journal alone
        self._clock = clock
        self._totals = Totals(window_s=window_s)

    def push(self, sample: Sample) -> None:
        """One more step, from the training thread."""
        self._totals = self._totals.with_step(sample, self._clock())

    def describe(self) -> Iterator[Metric]:
        """Every family, empty: so that a scrape may ask for some of them by `name[]`."""
        for metric in metrics.all_metrics():
            yield (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(metric.name, metric.help)

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client, in the order of the vocabulary."""
        totals, now = self._totals, self._clock()
        yield self._counter(metrics.HOOK_ERRORS, self._errors())
        for counter, count, step in zip(metrics.COUNTERS, totals.counts, totals.counted, strict=True):
            yield self._counter(counter, count, step)
        readings = totals.readings()
        for metric in metrics.SAMPLE_METRICS:
            if metric.field in readings:
                yield self._gauge(metric.name, readings[metric.field])
        yield self._gauge(metrics.WINDOW.name, totals.window_s)
        maxima = totals.maxima(now)
        for metric in metrics.SAMPLE_METRICS:
            if metric.field in maxima:
                yield self._gauge(metric.maximum_name, maxima[metric.field])
        if (reading := self._layers()) is not None and len(reading.layers) <= self._most_layers:
            yield from self._of_layers(reading)

    def _of_layers(self, reading: LayerVariance) -> Iterator[Metric]:
        yield self._gauge(metrics.LAYER_STEP.name, reading.global_step)
        for metric in metrics.LAYER_METRICS:
            family = GaugeMetricFamily(metric.name, metric.help, labels=[*_LABELS, "layer"])
            for layer, value in zip(reading.layers, getattr(reading, metric.field), strict=True):
                family.add_metric([*self._labels, layer], float(value))
            yield family

    def _counter(self, counter: metrics.Exported, count: int, step: Sample | None = None) -> Metric:
        family = CounterMetricFamily(counter.name, counter.help, labels=_LABELS)
        labels = dict(zip(_LABELS, self._labels, strict=True))  # older versions take no exemplar in add_metric
        exemplar_of = None
        if step is not None:  # run and attempt are the series' own labels; a step can be none: there are too many
            readings = {"global_step": step.global_step, "loss": float(step.loss), "loss_ratio": step.loss_ratio}
            shown = metrics.exemplar(readings, step.time_unix_s)
            exemplar_of = Exemplar(dict(shown.labels), shown.value, shown.time_unix_s)
        family.add_sample(counter.name, labels, count, exemplar=exemplar_of)
        return family

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, _HELP[name], labels=_LABELS)
        family.add_metric(self._labels, float(value))
        return family
