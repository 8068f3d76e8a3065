"""Many runs and one Prometheus: few questions, and each run is told what it would be told alone."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.adapters.prometheus.api import Api, Door, NotUnderstood, Point, PromSeries
from sentinel.adapters.prometheus.source import ScrapedRun, ScrapedRuns
from sentinel.config import load_config
from sentinel.config.run_files import state_dir_of
from sentinel.daemon.sources import SharedSources
from sentinel.vocabulary.errors import ScrapeError
from sentinel.vocabulary.sample import Record
from tests.adapters.asking import Asking, Stored
from tests.adapters.pagers import until
from tests.adapters.prometheus_server import Server
from tests.adapters.scraped import folded, recorded, scraped, seen
from tests.adapters.servers import PROMETHEUS
from trainer_hooks.export.exporter import Exporter, ExporterSettings
from trainer_hooks.export.step_collector import StepCollector

SAMPLES = recorded("attention_growth_c")[:300]
SCRAPES = list(scraped(SAMPLES, range(5, 301, 5)))
MANY = [f"run-{i}" for i in range(60)]


def test_a_fleet_whose_turns_are_spread_asks_a_few_times_for_all() -> None:
    stored, now = Stored(SCRAPES[: len(SCRAPES) // 2], MANY), 0.0
    runs = ScrapedRuns(stored, now=lambda: now, monotonic=lambda: now)
    sources = {name: runs.run(name) for name in MANY}
    records: dict[str, list[Record]] = {name: [] for name in MANY}
    order = random.Random(3).sample(MANY, len(MANY))
    for turn in range(20, 34):
        if turn == 22:  # all have caught up, and have a pace
            stored.asked_for.clear()
        for i, name in enumerate(order):
            now = 5.0 * (turn + i / len(order))
            records[name] += sources[name].new()
    alone = len([runs for runs in stored.asked_for if len(runs) == 1])
    assert alone <= len(MANY)  # each goes back once a minute for what came late
    assert len(stored.asked_for) - alone < 12 * 10  # twelve times each second of five, and again after one went alone
    whole = folded(stored.of("small"))[1:]
    assert all(found[1:] == whole for found in records.values())


def test_a_run_that_prometheus_can_not_answer_for_is_alone_in_that() -> None:
    stored = Stored(SCRAPES, ["ill", "well"])
    asking = Asking(stored, ["ill", "well"])
    records = asking.at([100, 105, 110])
    stored.unbearable = "ill"
    records += asking.at(range(115, 330, 5))
    assert records == folded(SCRAPES)
    assert asking.said_last["well"] is None
    assert isinstance(asking.said_last["ill"], NotUnderstood)
    stored.unbearable = ""
    asking.at([330, 335])
    assert asking.said_last["ill"] is None


def test_a_run_that_is_silent_is_heard_as_soon_as_it_is_there_again_and_nothing_between_is_lost() -> None:
    later = [s for s in SCRAPES if s.values[0].at > 100]
    moved = [PromSeries(labels=s.labels, values=tuple(Point(p.at + 1000, p.value) for p in s.values)) for s in later]
    whole = [*(s for s in SCRAPES if s.values[0].at <= 100), *moved]
    asking = Asking(Stored(whole, ["well"]), ["well"])
    assert asking.at(range(5, 1310, 5)) == folded(whole)


class Slow(Stored):
    """Takes its time, as one in the network does."""

    def scraped(self, selector: str, since: float, until: float) -> list[PromSeries]:
        time.sleep(0.01)
        return super().scraped(selector, since, until)


def test_whichever_thread_a_runs_turn_is_in_it_is_told_each_scrape_once() -> None:
    names = MANY[:12]
    stored, clock = Slow(SCRAPES, names), [0.0]
    runs = ScrapedRuns(stored, now=lambda: clock[0], monotonic=lambda: clock[0])
    sources = {name: runs.run(name) for name in names}
    records: dict[str, list[Record]] = {name: [] for name in names}
    with ThreadPoolExecutor(6) as pool:
        for clock[0] in [float(at) for at in range(100, 320, 5)]:
            for name, found in zip(names, pool.map(lambda n: sources[n].new(), names), strict=True):
                records[name] += found
    assert all(seen(found) == seen(folded(SCRAPES)) for found in records.values())


class Hanging(Stored):
    """Does not answer until it is let go."""

    def __init__(self) -> None:
        super().__init__([])
        self.go, self.waits = threading.Event(), threading.Event()

    def scraped(self, selector: str, since: float, until: float) -> list[PromSeries]:
        if self.away:
            self.asked += 1
            self.waits.set()
            self.go.wait(120)
            raise ScrapeError(self.host, "no answer")
        return super().scraped(selector, since, until)


def test_while_one_run_waits_for_a_prometheus_that_is_known_to_be_away_the_others_do_not() -> None:
    stored = Hanging()
    runs = ScrapedRuns(stored)
    first, *others = [runs.run(name) for name in MANY[:20]]
    stored.away = True
    stored.go.set()
    with pytest.raises(ScrapeError):
        first.new()
    stored.go.clear()
    stored.waits.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.new)
        assert stored.waits.wait(120)
        asked = stored.asked
        for other in others:
            with pytest.raises(ScrapeError, match="no answer"):
                other.new()
        assert stored.asked == asked
        stored.go.set()
        assert isinstance(waiting.exception(120), ScrapeError)


CONFIGURED = """\
[run]
name = "{name}"
checkpoints = "not-mounted"
state_dir = "{name}"
[source]
kind = "prometheus"
url = "{url}"
{more}
[launcher]
kind = "elsewhere"
"""


def configured(folder: Path, name: str, url: str, more: str = "") -> ScrapedRun:
    (folder / f"{name}.toml").write_text(CONFIGURED.format(name=name, url=url, more=more))
    config = load_config(folder / f"{name}.toml")
    source = SOURCES(config, state_dir_of(config))
    assert isinstance(source, ScrapedRun)
    return source


SOURCES = SharedSources()


def test_runs_that_ask_the_same_prometheus_in_the_same_way_ask_together(tmp_path: Path) -> None:
    one, same = (configured(tmp_path, name, "http://127.0.0.1:9") for name in ("one", "same"))
    other = configured(tmp_path, "other", "http://127.0.0.1:9", "selector = 'cluster=\"b\"'")
    elsewhere = configured(tmp_path, "elsewhere", "http://127.0.0.1:10")
    assert one._runs.queries is same._runs.queries
    assert len({id(source._runs.queries) for source in (one, other, elsewhere)}) == 3


NAMES = ("plain", "pl.in", "a|b", "a\\b", 'the "first" (x+y)*', "é{1}[2]^$?", "-", "two\nlines", "long" * 1000)
"""The last one makes the question longer than an address: it is posted."""


@pytest.mark.full
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed: apt-get install prometheus")
def test_runs_with_any_names_are_told_apart_by_a_real_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    collectors = [StepCollector(name, 1) for name in NAMES]
    with ExitStack() as stack:
        exporters = [Exporter(c, ExporterSettings(port=0)) for c in collectors]
        for exporter in exporters:
            stack.callback(exporter.close)
        server = Server(tmp_path, [e.port for e in exporters])
        stack.enter_context(server.running())
        runs = ScrapedRuns(Api(Door(url=server.url)))
        sources = {name: runs.run(name, 600.0) for name in NAMES}
        losses: dict[str, set[float]] = {name: set() for name in NAMES}
        step = 0

        def told() -> bool:
            nonlocal step
            step += 1
            for i, collector in enumerate(collectors):
                collector.push(replace(SAMPLES[step % 300], global_step=step, loss=float(i)))
            for name, source in sources.items():
                try:
                    losses[name] |= {sample.loss for sample in seen(source.new())}
                except ScrapeError:  # it is only beginning
                    continue
            return step > 50 and all(losses.values())

        until(told)
    assert losses == {name: {float(i)} for i, name in enumerate(NAMES)}
