"""Which step a counter has counted last: in OpenMetrics, and in a real Prometheus that keeps exemplars."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.samples import Exemplar as Read

from sentinel.vocabulary.metrics import LONGEST, exemplar
from sentinel.vocabulary.sample import Sample
from tests.adapters.pagers import until
from tests.adapters.prometheus_asked import Asked, prometheus
from trainer_hooks.export.exporter import Exporter, ExporterSettings
from trainer_hooks.export.step_collector import StepCollector


def sample(step: int, **readings: Any) -> Sample:
    return Sample(**({"attempt": 3, "global_step": step, "time_unix_s": 100.0 + step, "loss": 2.5} | readings))


def told(*samples: Sample) -> dict[str, Read]:
    """{counter: its exemplar}, as prometheus_client's own parser of OpenMetrics reads it."""
    families = read_openmetrics(generate_openmetrics(registry_of(*samples)).decode())
    return {s.name: s.exemplar for family in families for s in family.samples if s.exemplar is not None}


def registry_of(*samples: Sample) -> CollectorRegistry:
    collector = StepCollector("tr8", 3)
    for each in samples:
        collector.push(each)
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


SPIKE = sample(2, loss=5.1, loss_ratio=2.04)
NOT_A_NUMBER = sample(4, loss=math.nan, loss_ratio=math.inf, skipped=True)


def test_each_counter_names_the_last_step_that_it_counted() -> None:
    found = told(sample(1, loss_ratio=1.0), SPIKE, sample(3, loss_ratio=1.1))
    spike = found["sentinel_spike_steps_total"]
    assert spike.labels == {"global_step": "2", "loss": "5.1", "loss_ratio": "2.04"}
    assert (spike.value, float(spike.timestamp or 0)) == (1.0, 102.0)
    assert found["sentinel_steps_total"].labels["global_step"] == "3"
    assert set(found) == {"sentinel_spike_steps_total", "sentinel_steps_total"}


def test_a_step_that_is_counted_by_several_is_named_by_each_of_them_and_nan_is_said() -> None:
    found = told(sample(1), SPIKE, NOT_A_NUMBER, sample(5))
    named = {name: each.labels["global_step"] for name, each in found.items()}
    assert named == {
        "sentinel_steps_total": "5",
        "sentinel_spike_steps_total": "4",
        "sentinel_nonfinite_loss_steps_total": "4",
        "sentinel_skipped_steps_total": "4",
    }
    assert found["sentinel_nonfinite_loss_steps_total"].labels["loss"] == "nan"
    assert all(each.value == 1.0 for each in found.values())


@given(steps=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=30))
def test_a_counter_that_stands_at_0_names_no_step_and_any_other_the_last_of_its_kind(
    steps: list[tuple[bool, bool, bool]],
) -> None:
    made = [
        sample(n, loss=math.inf if odd else 1.0, loss_ratio=9.0 if spike else 1.0, skipped=skipped)
        for n, (spike, odd, skipped) in enumerate(steps)
    ]
    found = {name: int(each.labels["global_step"]) for name, each in told(*made).items()}
    for place, name in enumerate(("spike", "nonfinite_loss", "skipped")):
        of_its_kind = [n for n, kinds in enumerate(steps) if kinds[place]]
        assert found.get(f"sentinel_{name}_steps_total") == (of_its_kind[-1] if of_its_kind else None)


def test_the_text_format_has_no_place_for_it_and_is_as_it_was() -> None:
    text = generate_latest(registry_of(sample(1), SPIKE)).decode()
    assert 'sentinel_spike_steps_total{attempt="3",run="tr8"} 1.0\n' in text
    assert "global_step=" not in text


def test_a_time_that_is_none_is_left_to_who_scrapes() -> None:
    assert told(sample(1, time_unix_s=math.nan))["sentinel_steps_total"].timestamp is None


@given(labels=st.dictionaries(st.text(min_size=1), st.none() | st.text() | st.integers() | st.floats()))
def test_labels_never_take_more_room_than_there_is(labels: dict[str, Any]) -> None:
    fitting = exemplar(labels, 1.0).labels
    assert sum(len(name) + len(value) for name, value in fitting.items()) <= LONGEST


def test_what_has_no_room_is_left_out_and_what_is_not_known_takes_none() -> None:
    assert exemplar({"incident": "incident-1", "rollback": None, "x": "y" * 200}, 1.0).labels == {
        "incident": "incident-1"
    }


class Steps(StepCollector):
    """Several that no scrape falls between."""

    def __init__(self) -> None:
        super().__init__("tr8", 3)
        self._together = threading.Lock()

    def push_all(self, *samples: Sample) -> None:
        with self._together:
            for each in samples:
                self.push(each)

    def collect(self) -> Iterator[Metric]:
        with self._together:
            yield from list(super().collect())


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[Steps, Asked]]:
    """An attempt, and a Prometheus that keeps exemplars and scrapes it every two seconds."""
    collector = Steps()
    collector.push(sample(1, time_unix_s=time.time(), loss_ratio=1.0))
    exporter = Exporter(collector, ExporterSettings())
    targets = f'[{{targets: ["127.0.0.1:{exporter.port}"]}}]'
    scraping = (
        "global: {scrape_interval: 2s, scrape_timeout: 2s}\nscrape_configs:\n"
        f"  - {{job_name: sentinel, honor_labels: true, static_configs: {targets}}}\n"
    )
    try:
        with prometheus(tmp_path, scraping, "--enable-feature=exemplar-storage") as asked:
            yield collector, asked
    finally:
        exporter.close()
    assert "exemplar" not in (tmp_path / "prometheus.log").read_text()  # none was out of order, or too long


def steps_of(asked: Asked, counter: str) -> dict[str, dict[str, Any]]:
    """{global_step: the exemplar that Prometheus has of it}."""
    series = asked.get("query_exemplars", query=counter, start=time.time() - 600, end=time.time() + 60) or []
    return {e["labels"]["global_step"]: e for each in series for e in each["exemplars"]}


@pytest.mark.full
def test_prometheus_knows_the_step_of_a_spike_that_fell_between_two_of_its_scrapes(
    kept: tuple[Steps, Asked],
) -> None:
    collector, asked = kept
    until(lambda: "1" in steps_of(asked, "sentinel_steps_total"))
    spike = sample(31219, time_unix_s=time.time(), loss=5.1, loss_ratio=2.04)
    back = sample(31220, time_unix_s=time.time(), loss=2.5, loss_ratio=1.0)
    collector.push_all(spike, back)
    until(lambda: "31219" in steps_of(asked, "sentinel_spike_steps_total"))
    found = steps_of(asked, "sentinel_spike_steps_total")["31219"]
    assert found["labels"] == {"global_step": "31219", "loss": "5.1", "loss_ratio": "2.04"}
    assert float(found["timestamp"]) == pytest.approx(spike.time_unix_s, abs=0.01)
    until(lambda: asked.query("sentinel_global_step == 31220"))
    (worst,) = asked.query("max_over_time(sentinel_loss[10m])")
    assert worst["value"][1] == "2.5"  # no scrape has seen the spike's own reading
    until(lambda: "31220" in steps_of(asked, "sentinel_steps_total"))
    wrong = sample(31221, time_unix_s=time.time(), loss=math.nan, loss_ratio=math.inf)
    collector.push(wrong)
    until(lambda: "31221" in steps_of(asked, "sentinel_nonfinite_loss_steps_total"))
