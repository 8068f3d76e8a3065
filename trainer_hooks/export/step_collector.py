"""From the attempt's steps to metric families, built when somebody scrapes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from sentinel.vocabulary.exemplar import exemplar
from sentinel.vocabulary.metrics import (
    COUNTERS,
    HOOK_ERRORS,
    LAYER_METRICS,
    LAYER_STEP,
    SAMPLE_METRICS,
    WINDOW,
    Exported,
    all_metrics,
)
from sentinel.vocabulary.sample import LayerVariance, Sample
from trainer_hooks.export.totals import Totals

__all__ = ["StepCollector"]

_HELP = {metric.name: metric.help for metric in all_metrics()}
_LABELS = ["run", "attempt"]


class StepCollector(Collector):
    """Takes each step on the training thread, and shows them to the exporter's: a scrape never mixes two steps.

    The two share one reference to something that never changes, so neither ever waits for the other.
    """

    def __init__(
        self,
        run: str,
        attempt: int,
        *,
        errors: Callable[[], int] = lambda: 0,
        layers: Callable[[], LayerVariance | None] = lambda: None,
        window_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= window_s < math.inf:
            raise ValueError(f"window_s is a number of seconds, 1 or more, not {window_s!r}")
        self._labels = [run, str(attempt)]
        self._errors = errors
        self._layers = layers
        self._clock = clock
        self._totals = Totals(window_s=window_s)

    def push(self, sample: Sample) -> None:
        """One more step, from the training thread."""
        self._totals = self._totals.with_step(sample, self._clock())

    def describe(self) -> Iterator[Metric]:
        """Every family, empty: so that a scrape may ask for some of them by `name[]`."""
        for metric in all_metrics():
            yield (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(metric.name, metric.help)

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client, in the order of the vocabulary."""
        totals, now = self._totals, self._clock()
        yield self._counter(HOOK_ERRORS, self._errors())
        for counter, count, step in zip(COUNTERS, totals.counts, totals.counted, strict=True):
            yield self._counter(counter, count, step)
        readings = totals.readings()
        for metric in SAMPLE_METRICS:
            if metric.field in readings:
                yield self._gauge(metric.name, readings[metric.field])
        yield self._gauge(WINDOW.name, totals.window_s)
        maxima = totals.maxima(now)
        for metric in SAMPLE_METRICS:
            if metric.field in maxima:
                yield self._gauge(metric.maximum_name, maxima[metric.field])
        if (reading := self._layers()) is not None:
            yield from self._of_layers(reading)

    def _of_layers(self, reading: LayerVariance) -> Iterator[Metric]:
        yield self._gauge(LAYER_STEP.name, reading.global_step)
        for metric in LAYER_METRICS:
            family = GaugeMetricFamily(metric.name, metric.help, labels=[*_LABELS, "layer"])
            for layer, value in zip(reading.layers, getattr(reading, metric.field), strict=True):
                family.add_metric([*self._labels, layer], float(value))
            yield family

    def _counter(self, counter: Exported, count: int, step: Sample | None = None) -> Metric:
        family = CounterMetricFamily(counter.name, counter.help, labels=_LABELS)
        labels = dict(zip(_LABELS, self._labels, strict=True))  # older versions take no exemplar in add_metric
        family.add_sample(counter.name, labels, count, exemplar=None if step is None else _of_step(step))
        return family

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, _HELP[name], labels=_LABELS)
        family.add_metric(self._labels, float(value))
        return family


def _of_step(step: Sample) -> Exemplar:
    """Which step it was. Run and attempt are the series' own labels; a step can be none: there are too many."""
    readings = {"global_step": step.global_step, "loss": float(step.loss), "loss_ratio": step.loss_ratio}
    shown = exemplar(readings, step.time_unix_s)
    return Exemplar(dict(shown.labels), shown.value, shown.time_unix_s)
