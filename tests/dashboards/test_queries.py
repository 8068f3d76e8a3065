"""Every query of every dashboard, answered by a real Prometheus that scraped a real run that diverged.

The trainer's side is the real exporter, fed with the samples of the run's journal; the daemon's is its real /metrics,
with what a real look at that run says. Stand-ins are: the layers' variance and the loss scale, which that run does not
measure; a second attempt, with a nan in it; and an incident, a rollback and what moved first, where the run has none.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.exposition.exposition import Exposition
from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.exposition.text import RunWriter
from sentinel.config import load_config
from sentinel.daemon import wiring
from sentinel.daemon.run_metrics import Correlated
from sentinel.daemon.run_series import Turns, exposed, of_actions, of_daemon
from sentinel.vocabulary.metrics import Shown
from sentinel.vocabulary.sample import Sample, decode
from tests.adapters.pagers import NO_PROXY, environment, free_port, until
from tests.dashboards.boards import FOLDER, Asked, queries
from trainer_hooks.export.exporter import Exporter, ExporterSettings
from trainer_hooks.export.step_collector import StepCollector

pytestmark = pytest.mark.full  # a night that is lived through asks the same of the boards of one run

PROMETHEUS = shutil.which("prometheus")
CHOSEN = {"$__rate_interval": "4s", "$__range": "5m", "$__interval": "1s", "$attempt": ".*", "$run": "demo"}


@dataclass(frozen=True)
class Layers:
    """Of a model of two blocks: a stand-in."""

    global_step: int = 10
    layers: tuple[str, ...] = ("embedding", "blocks.0", "blocks.1")
    adam_variance_l1: tuple[float, ...] = (1.0, 2.0, 3.0)
    adam_variance_max: tuple[float, ...] = (0.1, 0.2, 0.3)


@dataclass(frozen=True)
class Scraped:
    """A Prometheus that has seen the run."""

    url: str
    samples: tuple[Sample, ...]
    """Of its first attempt."""

    began: float
    """Unix seconds."""

    def ask(self, asked: Asked) -> list[dict[str, Any]]:
        """The series that answer it; each has a `metric` and its `values`."""
        expr = asked.expr
        for variable, value in CHOSEN.items():
            expr = expr.replace(variable, value)
        if asked.instant:
            series = _series(self.url, "query", query=expr)
            return [{"metric": one["metric"], "values": [one["value"]]} for one in series]
        return _series(self.url, "query_range", query=expr, start=self.began, end=time.time(), step=0.25)

    def answer(self, asked: Asked) -> list[dict[str, Any]]:
        """The same, once there is any: at a moment whose scrape came too late there is none."""
        found: list[dict[str, Any]] = []
        until(lambda: found.extend(self.ask(asked)) or found)
        return found


def _series(url: str, path: str, **parameters: object) -> list[dict[str, Any]]:
    address = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - our own
        return list(json.load(answer)["data"]["result"])


@pytest.fixture(scope="module")
def scraped(diverged: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    if PROMETHEUS is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in NO_PROXY.items():
            patched.setenv(name, value)
        yield from _scraped(diverged, tmp_path_factory.mktemp("prometheus"), PROMETHEUS)


def _scraped(diverged: Path, folder: Path, program: str) -> Iterator[Scraped]:
    lines = (diverged / "state" / "attempts" / "0001.jsonl").read_text().splitlines()
    samples = tuple(record for record in map(decode, lines) if isinstance(record, Sample))
    ports = [free_port() for _ in range(4)]
    shutil.copytree(diverged, folder / "run")
    watch = Exposition(Metrics(port=ports[3]), folder / "scrape-watch.json", {"run": "demo"})
    watch.open()
    watch.show("demo", RunWriter().write(_watched(folder / "run")))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(_command(program, folder, ports), stdout=log, stderr=log, env=environment())
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        until(lambda: _scrapes(url, len(ports) - 1) or _ended(process, folder / "log"))
        began = time.time()
        with _training(samples, url, attempt=1, port=ports[1]):
            pass
        wrong = replace(samples[60], loss=math.nan, loss_ratio=math.inf)
        made_up = {"loss_scale": 65536.0, "loss_ratio_all_lengths": 1.05}
        again = [replace(s, attempt=2, **made_up) for s in (*samples[:60], wrong, *samples[61:80])]
        with _training(again, url, attempt=2, port=ports[2]):  # it still runs while it is asked after
            yield Scraped(url, samples, began)
    finally:
        process.terminate()
        process.wait(60)
        watch.close(well=True)


def _watched(folder: Path) -> list[Shown]:
    """What the watch shows after one turn at the run that has diverged."""
    config = load_config(folder / "demo.toml")
    look = wiring.observer_of(config, wiring.neighbours_of(config)).look(time.time())
    turns = Turns().with_turn(took_s=0.1, failed=False, look_unix_s=time.time())
    shown = [
        *exposed("demo", look, config.policy, Correlated().of(look)),
        *of_actions("demo", look.events),
        *of_daemon("demo", turns, mode="observe", poll_interval_s=30, version="0"),
    ]
    made_up = (
        Shown("sentinel_last_incident_timestamp_seconds", time.time(), ("demo",)),
        Shown("sentinel_mitigation", 1.0, ("demo", "applied")),
        Shown("sentinel_led_by_steps", 3.0, ("demo", "1", "adam_variance_l1")),
    )
    return shown + [each for each in made_up if each.name not in {one.name for one in shown}]


@contextmanager
def _training(samples: Sequence[Sample], url: str, *, attempt: int, port: int) -> Iterator[None]:
    """One life of the trainer, with its last step seen: ten steps from one scrape to the next, however long that is."""
    shown = threading.Event()

    def layers() -> Layers:
        shown.set()
        return Layers()

    collector = StepCollector("demo", attempt, layers=layers)
    exporter = Exporter(collector, ExporterSettings(port=port))
    try:
        for i, sample in enumerate(samples):
            collector.push(sample)
            if i % 10 == 0:
                shown.clear()
                assert shown.wait(120), "nobody scrapes"
        last = f'sentinel_global_step{{attempt="{attempt}"}} == {samples[-1].global_step}'
        until(lambda: _series(url, "query", query=last))
        yield
    finally:
        exporter.close()


def _command(program: str, folder: Path, ports: list[int]) -> list[str]:
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports[1:])
    rules = (FOLDER / "rules" / "recording.yaml").read_text()
    (folder / "recording.yaml").write_text(rules.replace("interval: 30s", "interval: 500ms"))
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\n"
        f"rule_files: [{folder / 'recording.yaml'}]\n"
        f"scrape_configs: [{{job_name: sentinel, static_configs: [{{targets: [{targets}]}}]}}]\n"
    )
    where = [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{ports[0]}"]
    return [program, f"--config.file={folder / 'prometheus.yml'}", "--log.level=warn", *where]


def _scrapes(url: str, targets: int) -> bool:
    """Whether every target has been tried: Prometheus takes some seconds to begin."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?query=up", timeout=60) as answer:  # noqa: S310 - our own
            return len(json.load(answer)["data"]["result"]) == targets
    except OSError:
        return False


def _ended(process: subprocess.Popen[bytes], log: Path) -> bool:
    """False while it runs. AssertionError with its last words where it has ended."""
    assert process.poll() is None, log.read_text()[-2000:]
    return False


@pytest.mark.parametrize("asked", queries(), ids=str)
def test_every_query_is_answered_with_data(scraped: Scraped, asked: Asked) -> None:
    series = scraped.answer(asked)
    assert not all(math.isnan(float(value)) for one in series for _, value in one["values"]), series


def _named(panel: str, ref: str = "A", board: str = "spike-triage.json") -> Asked:
    return next(q for q in queries() if (q.board, q.panel, q.ref) == (board, panel, ref))


def test_no_spike_is_lost_between_two_scrapes(scraped: Scraped) -> None:
    worst = max(sample.loss_ratio or 0 for sample in scraped.samples)
    shown = scraped.ask(_named("Loss ratio", "B"))
    largest = max(float(v) for s in shown if s["metric"]["attempt"] == "1" for _, v in s["values"])
    assert largest == pytest.approx(worst)
    assert worst > 1.2


def test_the_curve_by_step_is_of_one_step_at_each_of_its_points(scraped: Scraped) -> None:
    steps, losses = (
        {(s["metric"]["attempt"], at): float(v) for s in scraped.ask(_named("loss", ref)) for at, v in s["values"]}
        for ref in ("A", "B")
    )
    truth = {sample.global_step: sample.loss for sample in scraped.samples}
    points = [(steps[key], loss) for key, loss in losses.items() if key[0] == "1"]
    assert len({step for step, _ in points}) > 10
    assert all(truth[int(step)] == pytest.approx(loss, nan_ok=True) for step, loss in points)
    assert {attempt for attempt, _ in losses} == {"1", "2"}


def test_a_loss_of_nan_is_marked_though_no_line_can_show_it(scraped: Scraped) -> None:
    marked = scraped.ask(_named("Loss not finite", "mark"))
    overflowed = {"1"} if any(not math.isfinite(s.loss or 0) for s in scraped.samples) else set()  # on some processors
    assert {series["metric"]["attempt"] for series in marked} == {"2"} | overflowed


def test_the_fleet_shows_the_verdict_by_its_name(scraped: Scraped) -> None:
    (row,) = scraped.answer(_named("Runs", "A", "fleet.json"))
    assert row["metric"] == {"run": "demo", "verdict": "diverged"}
