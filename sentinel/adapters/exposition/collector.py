"""What the daemon shows as metric families, built at a scrape, or in a file where nobody can scrape."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from sentinel.vocabulary.metrics import DAEMON_METRICS, Exported, Shown

log = logging.getLogger(__name__)


class DaemonCollector(Collector):
    """Holds what each run's last turn has shown: one reference to what never changes, so a scrape and a turn never wait
    for each other, and a scrape never mixes two turns of a run."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[Shown, ...]] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def show(self, run: str, shown: Iterable[Shown]) -> None:
        self._shown[run] = tuple(shown)

    def withdraw(self, run: str) -> None:
        self._shown.pop(run, None)

    def text(self) -> bytes:
        """The whole of it in Prometheus's text format."""
        return generate_latest(self.registry)

    def describe(self) -> Iterator[Metric]:
        """Every family, empty: so that a scrape may ask for some of them by `name[]`."""
        return (_family(metric) for metric in DAEMON_METRICS)

    def collect(self) -> Iterator[Metric]:
        """The families that have a series, in the order of the vocabulary."""
        series: dict[str, list[Shown]] = {}
        for of_run in tuple(self._shown.values()):
            for shown in of_run:
                series.setdefault(shown.name, []).append(shown)
        for metric in DAEMON_METRICS:
            if metric.name not in series:
                continue
            family = _family(metric)
            for shown in series[metric.name]:
                _add(family, metric, shown)
            yield family


def _family(metric: Exported) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)


def _add(family: CounterMetricFamily | GaugeMetricFamily, metric: Exported, shown: Shown) -> None:
    if shown.exemplar is None or metric.kind != "counter":
        family.add_metric(shown.labels, shown.value)
        return
    counted = Exemplar(dict(shown.exemplar.labels), shown.exemplar.value, shown.exemplar.time_unix_s)
    labels = dict(zip(metric.labels, shown.labels, strict=True))  # older versions take no exemplar in add_metric
    family.add_sample(shown.name, labels, shown.value, exemplar=counted)


class Textfile:
    """What one run's watch shows, for node_exporter's textfile collector: written anew by each turn. What goes wrong
    with it is logged once, and costs no turn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._complained = False

    def write(self, shown: Iterable[Shown]) -> None:
        collector = DaemonCollector()
        collector.show("", shown)
        try:
            # Whole or not at all, and not forced to the disk. Its name does not end in .prom: nobody reads half of it.
            beside = self._path.with_name(f".{self._path.name}.new")
            beside.write_bytes(collector.text())
            beside.chmod(0o644)
            beside.replace(self._path)
        except OSError as error:
            level = logging.DEBUG if self._complained else logging.WARNING
            log.log(level, "the metrics' textfile can't be written: %s", error)
            self._complained = True

    def remove(self) -> None:
        """The watch has ended as it should."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the metrics' textfile can't be taken away: %s", error)
