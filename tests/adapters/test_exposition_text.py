"""The daemon's own text formats against those of prometheus_client, for any values, labels and exemplars."""

from __future__ import annotations

import gzip
import math
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as TheirExemplar

from sentinel.adapters.exposition.exposition import Exposition
from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.exposition.text import RunWriter, page
from sentinel.vocabulary.metrics import DAEMON_METRICS, Exemplar, Shown

words = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8)
values = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, math.nan, math.inf]), st.integers(-9, 1 << 40).map(float))
values = values.map(lambda value: value + 0.0)  # -0.0, which no reading is, may be written as 0.0


@st.composite
def series(draw: st.DrawFn) -> Shown:
    metric = draw(st.sampled_from(DAEMON_METRICS))
    exemplar = None
    if metric.kind == "counter":
        times = st.none() | st.floats(0, 2e9)
        exemplar = draw(st.none() | st.builds(Exemplar, st.dictionaries(st.just("incident"), words), times))
    return Shown(metric.name, draw(values), tuple(draw(words) for _ in metric.labels), exemplar)


class Reference(Collector):
    """The same series by prometheus_client's own classes."""

    def __init__(self, runs: list[list[Shown]]) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        for metric in DAEMON_METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for shown in (one for run in self._runs for one in run if one.name == metric.name):
                of = shown.exemplar
                theirs = None if of is None else TheirExemplar(dict(of.labels), of.value, of.time_unix_s)
                labels = dict(zip(metric.labels, shown.labels, strict=True))
                family.add_sample(shown.name, labels, shown.value, exemplar=theirs)
            if family.samples:
                yield family


@given(st.lists(st.lists(series(), max_size=12), max_size=3))
def test_both_formats_are_those_of_prometheus_client(runs: list[list[Shown]]) -> None:
    registry = CollectorRegistry()
    registry.register(Reference(runs))
    written = [RunWriter().write(run) for run in runs]
    assert page(written) == generate_latest(registry)
    assert page(written, openmetrics=True) == generate_openmetrics(registry)


def test_a_writer_forgets_the_series_that_a_turn_no_longer_has() -> None:
    writer = RunWriter()
    for attempt in range(100):
        writer.write([Shown("sentinel_judged_loss", 1.0, ("tr8", str(attempt)))])
    assert len(writer._starts) == 1


def test_series_that_stay_the_same_are_written_beside_those_that_change() -> None:
    writer, same = RunWriter(), (Shown("sentinel_actions_total", 2.0, ("tr8", "stop_job", "done")),)
    for loss in (1.0, 2.0):
        text = page([writer.write([Shown("sentinel_judged_loss", loss, ("tr8", "1"))], same)])
        assert text.count(b"sentinel_actions_total{") == 1
        assert b'sentinel_judged_loss{attempt="1",run="tr8"} %.1f' % loss in text
    other = (Shown("sentinel_actions_total", 3.0, ("tr8", "stop_job", "done")),)
    assert b"} 3.0" in page([writer.write((), other)])


@pytest.fixture
def exposition(tmp_path: Path) -> Iterator[Exposition]:
    made = Exposition(Metrics(), tmp_path / "scrape-watch.json", {})
    made.open()
    yield made
    made.close(well=True)


def asked(exposition: Exposition, query: str = "", method: str = "GET", **headers: str) -> tuple[bytes, str]:
    assert exposition.server is not None
    url = f"http://127.0.0.1:{exposition.server.port}/metrics{query}"
    request = urllib.request.Request(url, headers=headers, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return answer.read(), str(answer.headers["Content-Encoding"])


def test_a_scrape_may_ask_for_some_series_and_for_a_compressed_answer(exposition: Exposition) -> None:
    shown = [Shown("sentinel_paused", 1.0, ("a",)), Shown("sentinel_turns_total", 2.0, ("a",))]
    exposition.show("a", RunWriter().write(shown))
    some, _ = asked(exposition, "?name[]=sentinel_turns_total")
    assert b'sentinel_turns_total{run="a"} 2.0' in some
    assert b"sentinel_paused" not in some
    packed, encoding = asked(exposition, **{"Accept-Encoding": "gzip"})
    assert encoding == "gzip"
    assert gzip.decompress(packed) == asked(exposition)[0]


def test_only_get_is_answered(exposition: Exposition) -> None:
    assert asked(exposition, method="OPTIONS")[0] == b""
    with pytest.raises(urllib.error.HTTPError, match="405"):
        asked(exposition, method="DELETE")
