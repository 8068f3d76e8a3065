"""What a daemon shows of all its runs, each written at its turn: at /metrics, announced to Prometheus, or in a file
where nobody can scrape. None of it may cost a turn."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock

from sentinel.adapters.exposition.scrapes import scrapes
from sentinel.adapters.exposition.server import Server, is_loopback
from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.exposition.text import RunText, page
from sentinel.durable import write_atomically
from sentinel.vocabulary.errors import SentinelError

log = logging.getLogger(__name__)


class MetricsPage:
    """Holds the lines of each run's last turn: references to what never changes, so a scrape and a turn never wait for
    each other, and a scrape never mixes two turns of a run."""

    def __init__(self) -> None:
        self._runs: dict[str, RunText] = {}

    def show(self, run: str, text: RunText) -> None:
        self._runs[run] = text

    def withdraw(self, run: str) -> None:
        self._runs.pop(run, None)

    def text(self, *, openmetrics: bool = False, names: Collection[str] = ()) -> bytes:
        return page(tuple(self._runs.values()), openmetrics=openmetrics, names=names)


class Textfile:
    """What one run's watch shows, for node_exporter's textfile collector: written anew by each turn. What goes wrong
    with it is logged once, and costs no turn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._complained = False

    def write(self, text: RunText) -> None:
        try:
            # Whole or not at all, and not forced to the disk. Its name does not end in .prom: nobody reads half of it.
            beside = self._path.with_name(f".{self._path.name}.new")
            beside.write_bytes(page((text,)))
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


class Exposition(MetricsPage):
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
            server = Server(scrapes(self), self._settings)
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
