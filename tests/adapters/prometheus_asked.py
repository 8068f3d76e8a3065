"""A real Prometheus with a configuration of its own, and what it answers."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.pagers import free_port
from tests.adapters.servers import PROMETHEUS, running


class Asked:
    """Its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **given: object) -> Any:
        """The answer's data; None while it can't be asked yet."""
        try:
            with self._opener.open(f"{self._url}{path}?{urllib.parse.urlencode(given)}", timeout=60) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that answer it now; each has a `metric` and a `value`."""
        found = self.get("query", query=expr)
        return [] if found is None else list(found["result"])

    def targets(self) -> dict[str, tuple[str, str]]:
        """{address: (health, what the last scrape came to)}."""
        found = self.get("targets") or {"activeTargets": []}
        return {t["scrapeUrl"]: (t["health"], t["lastError"]) for t in found["activeTargets"]}


@contextmanager
def prometheus(folder: Path, configuration: str, *flags: str) -> Iterator[Asked]:
    """Runs one in the folder; skips where none is installed."""
    if PROMETHEUS is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    (folder / "prometheus.yml").write_text(configuration)
    port = free_port()
    where = [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"]
    line = [f"--config.file={folder / 'prometheus.yml'}", "--log.level=warn", *where, *flags]
    with running(PROMETHEUS, *line, folder=folder, name="prometheus"):
        yield Asked(port)
