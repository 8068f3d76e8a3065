"""A real Prometheus that is stopped and started with what it had, and the sources that ask it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sentinel.adapters.prometheus.api import Api, Door
from sentinel.adapters.prometheus.source import ScrapedRun, ScrapedRuns
from tests.adapters.pagers import environment, free_port
from tests.adapters.servers import PROMETHEUS

EVERY_S = 0.25


class Server:
    """A real Prometheus, which can be stopped and started with what it had."""

    def __init__(self, folder: Path, targets: Sequence[int]) -> None:
        self.port, self.targets, self._folder = free_port(), targets, folder
        addresses = ", ".join(f'"127.0.0.1:{port}"' for port in targets)
        (folder / "scraping.yaml").write_text(
            f"global: {{scrape_interval: {EVERY_S * 1000:.0f}ms}}\nscrape_configs:\n"
            f"  - {{job_name: sentinel, honor_labels: true, static_configs: [{{targets: [{addresses}]}}]}}\n"
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        command = [str(PROMETHEUS), "--config.file", "scraping.yaml", "--storage.tsdb.path", "tsdb"]
        command += ["--web.listen-address", f"127.0.0.1:{self.port}"]
        with (self._folder / "prometheus.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=log, env=environment(GOMAXPROCS="1")
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def source(self) -> ScrapedRun:
        return ScrapedRuns(Api(Door(url=self.url))).run("small", lookback_s=600)
