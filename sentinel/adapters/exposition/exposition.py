"""What a daemon shows of all its runs, built at a scrape: at /metrics, announced to Prometheus, or in a file where
nobody can scrape. None of it may cost a turn."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from sentinel.adapters.exposition.server import Server, is_loopback
from sentinel.adapters.exposition.settings import Metrics
from sentinel.durable import write_atomically
from sentinel.vocabulary.errors import SentinelError
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


NAME = "scrape-watch.json"  # where Prometheus's file_sd finds the watch; one run's is beside the trainer's scrape.json


class Exposition(DaemonCollector):
    """One server, whatever the number of runs. What goes wrong in it is logged, and the watch goes on without."""

    def __init__(self, settings: Metrics, announced: Path, labels: Mapping[str, str], *, once: bool = False) -> None:
        super().__init__()
        self._settings = settings
        self._announced = announced
        self._labels = labels  # the target's own: the run, where it shows only one
        self._once = once
        self._is_open = False
        self._lock = Lock()
        self.server: Server | None = None

    def open(self) -> None:
        """Listens and is announced, from the first run on whose lock is held."""
        with self._lock:
            if self._is_open or self._once:
                return
            self._is_open = True
            self.server = self._listening() if self._settings.serve else None
            self._announce()

    def change(self, settings: Metrics) -> None:
        """The configuration was read again."""
        if replace(settings, textfile=None) == replace(self._settings, textfile=None):
            return
        was_open = self._is_open
        self.close(well=True)
        self._settings = settings
        if was_open:
            self.open()

    def close(self, *, well: bool) -> None:
        """The watch ends. `well`: as it should, so that nobody is to miss it. Else what was announced stays, and is
        down: an alert can see that the watch is gone."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            if self.server is not None:
                self.server.close()
                self.server = None
            if not well:
                return
            try:
                self._withdraw()
            except (OSError, SentinelError) as error:
                log.warning("what was announced of /metrics can't be taken away: %s", error)

    def _listening(self) -> Server | None:
        try:
            server = Server(self.registry, self._settings)
        except (OSError, ValueError, SentinelError) as error:  # ValueError: no name that DNS could be asked for
            log.error("/metrics of sentinel itself can't be served: %s; the watch goes on without", error)
            return None
        log.info("/metrics of sentinel itself is at port %d of %s", server.port, server.address)
        return server

    def _announce(self) -> None:
        server, name = self.server, None
        if server is not None:
            name = self._settings.announce or reachable_name(self._settings.address, server.address)
        try:
            if server is not None and name:
                where = f"[{name}]:{server.port}" if ":" in name else f"{name}:{server.port}"
                scheme = {} if self._settings.certificate is None else {"__scheme__": "https"}
                labels = {**self._labels, "component": "watch", **scheme}  # the trainer's target has no component
                self._announced.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._announced, json.dumps([{"targets": [where], "labels": labels}]) + "\n")
            else:
                self._withdraw()
        except (OSError, SentinelError) as error:
            log.warning("/metrics can't be announced: %s", error)

    def _withdraw(self) -> None:
        if self._announced.exists():
            write_atomically(self._announced, "[]\n")


def reachable_name(asked: str, bound: str) -> str | None:
    """What another node calls what was asked to listen at `asked` and listens at `bound`; None where none can reach it.
    The node's name where it listens everywhere: Slurm's, which the cluster's nodes resolve, else the host's own."""
    if is_loopback(bound):
        return None
    if ipaddress.ip_address(bound.partition("%")[0]).is_unspecified:
        return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return asked
