"""Real servers on loopback, each a process of its own: a Prometheus with our rules, an Alertmanager."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.pagers import environment, free_port, until

RULES = Path(__file__).parents[2] / "dashboards" / "rules"
PROMETHEUS = shutil.which("prometheus")
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")

_SCRAPING = """\
global: {{scrape_interval: 500ms, evaluation_interval: {evaluated_every}}}
rule_files: [{rules}/recording.yaml, {rules}/alerts.yaml]
scrape_configs:
  - job_name: sentinel
    honor_labels: true
    file_sd_configs: [{{files: ["{state}/scrape*.json"], refresh_interval: 1s}}]
"""
_ALERTING = "alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{address}']}}]}}]}}\n"


@contextmanager
def running(*line: str | Path, folder: Path, name: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output is FOLDER/NAME.log; killed in the end."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*map(str, line)], cwd=folder, stdout=log, stderr=log, env=environment(**more))
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


class Server:
    """One that answers over HTTP."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ready(self) -> bool:
        try:
            with self._opener.open(f"{self.url}/-/ready", timeout=30):
                return True
        except OSError:
            return False

    def get(self, path: str, **parameters: object) -> Any:
        """The JSON at a path."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        with self._opener.open(f"{self.url}/{path}{query}", timeout=60) as answer:
            return json.load(answer)


class Prometheus(Server):
    """Prometheus, over its HTTP API."""

    def series(self, text: str, **when: object) -> list[dict[str, Any]]:
        """What answers a query, each with its `metric` and `values`: at a `time`, or from `start` to `end`."""
        path = "api/v1/query_range" if "start" in when else "api/v1/query"
        found = self.get(path, query=text, **when)["data"]["result"]
        return [{"metric": one["metric"], "values": one.get("values") or [one["value"]]} for one in found]

    def query(self, text: str) -> dict[tuple[str, ...], str]:
        """Values of the labels, by their names' order -> value."""
        return {tuple(v for _, v in sorted(s["metric"].items()) if v): s["values"][0][1] for s in self.series(text)}

    def alerts(self, state: str = "firing") -> dict[str, Any]:
        """By name."""
        alerts = self.get("api/v1/alerts")["data"]["alerts"]
        return {a["labels"]["alertname"]: a for a in alerts if a["state"] == state}


@contextmanager
def prometheus(
    folder: Path,
    *,
    state: Path,
    evaluated_every: str = "500ms",
    alertmanager: Server | None = None,
    rules: Path = RULES,
) -> Iterator[Prometheus]:
    """One that has our rules as they are, and finds a run's targets as the run announces them in its state folder.

    `rules` is another folder of theirs, for a run that is too short for their own interval.
    """
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    configuration, server = folder / "prometheus.yaml", Prometheus(free_port())
    text = _SCRAPING.format(rules=rules, state=state, evaluated_every=evaluated_every)
    configuration.write_text(text + (_ALERTING.format(address=alertmanager.address) if alertmanager else ""))
    where = ("--web.listen-address", server.address, "--storage.tsdb.path", folder / "tsdb")
    with running(PROMETHEUS, "--config.file", configuration, *where, folder=folder, name="prometheus"):
        until(server.ready)
        yield server


def quicker_rules(folder: Path) -> Path:
    """Our rules, worked out as often as it is scraped: of a run of a minute theirs would see two moments."""
    folder.mkdir()
    for rules in RULES.glob("*.yaml"):
        (folder / rules.name).write_text(re.sub(r"(?m)^    interval: \d+s", "    interval: 500ms", rules.read_text()))
    return folder


@contextmanager
def alertmanager(folder: Path, configuration: str) -> Iterator[Server]:
    """One that stands alone."""
    if ALERTMANAGER is None:
        pytest.skip("no Alertmanager here (apt-get install prometheus-alertmanager)")
    path, server = folder / "alertmanager.yaml", Server(free_port())
    path.write_text(configuration)
    where = ("--storage.path", folder / "alerts", "--web.listen-address", server.address, "--cluster.listen-address=")
    with running(ALERTMANAGER, "--config.file", path, *where, folder=folder, name="alertmanager"):
        until(server.ready)
        yield server
