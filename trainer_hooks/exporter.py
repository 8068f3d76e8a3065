"""/metrics of the trainer: the latest sample, one consistent step per scrape, on rank 0."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sentinel.vocabulary.metrics import HOOK_ERRORS, SAMPLE_METRICS
from sentinel.vocabulary.sample import Sample

__all__ = ["Exporter", "StepCollector"]


class StepCollector(Collector):
    """Builds the families when it is scraped, from one Sample: a scrape never mixes two steps."""

    def __init__(self, run: str, latest: Callable[[], Sample | None], errors: Callable[[], int]) -> None:
        self._run = run
        self._latest = latest
        self._errors = errors

    def collect(self) -> Iterable[Metric]:
        """The families, for prometheus_client."""
        errors = CounterMetricFamily(
            HOOK_ERRORS, "Errors inside the hook that were kept from the training loop.", labels=["run"]
        )
        errors.add_metric([self._run], self._errors())
        yield errors
        sample = self._latest()
        if sample is None:
            return
        for metric in SAMPLE_METRICS:
            value = getattr(sample, metric.field)
            if value is not None:
                family = GaugeMetricFamily(metric.name, metric.help, labels=["run", "attempt"])
                family.add_metric([self._run, str(sample.attempt)], float(value))
                yield family


class Exporter:
    """The HTTP server, announced to Prometheus's file_sd as STATE_DIR/scrape.json."""

    def __init__(self, collector: StepCollector, *, address: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError:  # taken: another job of this node has it, so an ephemeral one
            self._server, self._thread = start_http_server(0, address, registry)
        self.address = address
        self.port: int = self._server.server_port

    def announce(self, path: Path, labels: dict[str, str]) -> None:
        """Writes the target as Prometheus's file_sd reads it, atomically."""
        host = socket.gethostname() if self.address in ("", "0.0.0.0") else self.address  # noqa: S104 - a comparison
        document: list[dict[str, Any]] = [{"targets": [f"{host}:{self.port}"], "labels": labels}]
        beside = path.with_name(".scrape.json.new")
        beside.write_text(json.dumps(document) + "\n", encoding="utf-8")
        beside.replace(path)

    def close(self) -> None:
        """Stops serving and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        thread: Thread = self._thread
        thread.join(5.0)
