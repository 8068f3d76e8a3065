"""What the exporter shows of an attempt's steps: one step at a time, and nothing lost between two scrapes."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from sentinel.vocabulary.metrics import COUNTERS, INTERVAL_METRICS, SAMPLE_METRICS, WINDOW_MAXIMA, all_metrics
from sentinel.vocabulary.sample import Sample
from tests.support.layers_shown import LAYERS, sample, whole
from trainer_hooks.export.step_collector import StepCollector, Totals

EXPOSED = """\
# HELP sentinel_hook_errors_total Errors inside the hook that were kept from the training loop.
# TYPE sentinel_hook_errors_total counter
sentinel_hook_errors_total{attempt="3",run="tr8"} 2.0
# HELP sentinel_steps_total Optimizer steps that the attempt has reported, the skipped ones included.
# TYPE sentinel_steps_total counter
sentinel_steps_total{attempt="3",run="tr8"} 1.0
"""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def exposed(collector: StepCollector) -> dict[str, Metric]:
    registry = CollectorRegistry()
    registry.register(collector)
    return {family.name: family for family in read_text(generate_latest(registry).decode())}


def shown(families: Iterable[Metric]) -> dict[str, float]:
    """{name: value} of what has no layer."""
    return {s.name: s.value for family in families for s in family.samples if "layer" not in s.labels}


def scraped(collector: StepCollector) -> dict[str, float]:
    return shown(exposed(collector).values())


def test_a_scrape_reads_as_prometheus_wants_it() -> None:
    collector = StepCollector("tr8", 3, errors=lambda: 2)
    collector.push(sample(7, grad_norm=math.nan, lr=0.5))
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    assert text.startswith(EXPOSED)
    assert 'sentinel_loss{attempt="3",run="tr8"} 7.0\n' in text
    assert 'sentinel_grad_norm{attempt="3",run="tr8"} NaN\n' in text
    assert "adam_variance_l1{" not in text  # not measured is absent, not zero
    assert "global_step=" not in text


def test_what_is_exported_is_the_vocabularys_table_and_all_of_it() -> None:
    collector = StepCollector("tr8", 3, layers=lambda: LAYERS)
    collector.push(whole(7))
    registry = CollectorRegistry()
    registry.register(collector)
    table = {metric.name: metric for metric in all_metrics()}
    assert len(table) == len(all_metrics())
    for families in (
        list(read_text(generate_latest(registry).decode())),
        list(read_openmetrics(generate_openmetrics(registry).decode())),
    ):
        seen = {}
        for family in families:
            for s in family.samples:
                seen[s.name] = family.type
                assert set(s.labels) == set(table[s.name].labels), s.name
                assert family.documentation == table[s.name].help
        assert seen == {name: metric.kind for name, metric in table.items()}


def test_what_is_exported_of_a_step_are_fields_of_the_sample() -> None:
    names = {f.name for f in fields(Sample)}
    assert {m.field for m in SAMPLE_METRICS} <= names
    assert names - {m.field for m in SAMPLE_METRICS} == {"attempt", "time_unix_s", "epoch", "batch_digest"}
    assert len(COUNTERS) == len(Totals(window_s=60.0).with_step(sample(0), 0.0).counts)


def test_before_the_first_step_the_counters_stand_at_0_and_nothing_else_is_said() -> None:
    counters = {metric.name for metric in all_metrics() if metric.kind == "counter"}
    values = scraped(StepCollector("tr8", 3))
    assert {name for name, value in values.items() if value == 0} == counters
    assert set(values) - counters == {"sentinel_window_seconds"}


def test_every_kind_of_step_is_counted_whenever_the_scrapes_come() -> None:
    collector = StepCollector("tr8", 3)
    collector.push(sample(1, loss_ratio=1.0))
    collector.push(sample(2, loss_ratio=1.2))
    collector.push(sample(3, loss_ratio=1.21))
    collector.push(sample(4, loss=math.nan, loss_ratio=math.inf, skipped=True))
    collector.push(sample(5, loss=math.inf, loss_ratio=math.inf))
    collector.push(sample(6, loss_ratio=None))
    values = scraped(collector)
    assert values["sentinel_steps_total"] == 6
    assert values["sentinel_spike_steps_total"] == 3
    assert values["sentinel_nonfinite_loss_steps_total"] == 2
    assert values["sentinel_skipped_steps_total"] == 1


def test_a_spike_between_two_scrapes_shows_to_every_scraper() -> None:
    clock = Clock()
    collector = StepCollector("tr8", 3, clock=clock)
    collector.push(sample(1, loss_ratio=1.0))
    assert scraped(collector)["sentinel_loss_ratio_window_max"] == 1.0
    clock.now += 1
    collector.push(sample(2, loss_ratio=7.0))
    clock.now += 1
    collector.push(sample(3, loss_ratio=1.1))
    for _ in range(3):  # two Prometheus and a person's curl
        values = scraped(collector)
        assert (values["sentinel_loss_ratio"], values["sentinel_loss_ratio_window_max"]) == (1.1, 7.0)


steps = st.lists(
    st.tuples(st.floats(0, 50), st.one_of(st.none(), st.floats(width=32))), min_size=1, max_size=40
)  # (seconds since the one before, grad_norm)


@given(steps=steps, interval_s=st.floats(1, 60), start=st.floats(0, 1e6))
def test_who_scrapes_at_least_once_a_window_misses_no_maximum(
    steps: list[tuple[float, float | None]], interval_s: float, start: float
) -> None:
    totals, window_s = Totals(window_s=60.0), 60.0
    now, scrape_at = start, start + interval_s
    unseen: list[float] = []
    for number, (pause_s, norm) in enumerate([*steps, (60.0, None)]):
        while scrape_at <= now + pause_s:
            top = totals.maxima(scrape_at).get("grad_norm", -math.inf)
            assert all(top >= value for value in unseen)
            unseen, scrape_at = [], scrape_at + interval_s
        now += pause_s
        totals = totals.with_step(sample(number, grad_norm=norm), now)
        if norm is not None:
            unseen.append(math.inf if math.isnan(norm) else norm)
    assert totals.maxima(now + window_s * 13 / 12 + 0.01) == {}
    assert len(totals.slices) <= 13


@pytest.mark.parametrize("at", [0.0, 0.1, 4.99, 5.0, 57.5, 1e6])
def test_a_maximum_shows_for_a_window_and_at_most_a_twelfth_longer(at: float) -> None:
    totals = Totals(window_s=60.0).with_step(sample(0, grad_norm=9.0), at)
    for second in range(1, 66):
        totals = totals.with_step(sample(second, grad_norm=1.0), at + second)
        if second <= 60:
            assert totals.maxima(at + second)["grad_norm"] == 9.0
    assert totals.maxima(at + 65.01)["grad_norm"] == 1.0


def test_nan_is_the_worst_reading_of_a_window() -> None:
    """As +Inf: PromQL's max() passes over NaN, and no alert's comparison with it holds."""
    collector = StepCollector("tr8", 3)
    collector.push(sample(1, loss=2.0, grad_norm=3.0))
    collector.push(sample(2, loss=math.nan, grad_norm=1.0))
    collector.push(sample(3, loss=1.0, grad_norm=2.0))
    values = scraped(collector)
    assert (values["sentinel_loss"], values["sentinel_loss_window_max"]) == (1.0, math.inf)
    assert values["sentinel_grad_norm_window_max"] == 3.0
    collector.push(sample(4, loss=math.nan))
    assert math.isnan(scraped(collector)["sentinel_loss"])


def test_what_is_measured_at_intervals_does_not_come_and_go() -> None:
    collector = StepCollector("tr8", 3)
    collector.push(whole(10))
    collector.push(sample(11, adam_variance_l1=11.0))
    values = scraped(collector)
    assert {values[metric.name] for metric in INTERVAL_METRICS} == {10.0}
    assert values["sentinel_adam_variance_l1"] == 11.0
    assert "sentinel_adam_variance_max" not in values  # a reading that is really away is not made up


@pytest.mark.parametrize(("most", "shown"), [(0, False), (3, False), (4, True)])
def test_a_model_with_more_layers_than_allowed_shows_none_of_them(most: int, shown: bool) -> None:
    collector = StepCollector("tr8", 3, layers=lambda: LAYERS, most_layers=most)
    names = {family.name for family in collector.collect()}
    assert ("sentinel_layer_adam_variance_l1" in names) is shown
    assert ("sentinel_layer_global_step" in names) is shown


def test_layers_are_series_of_their_own_name() -> None:
    collector = StepCollector("tr8", 3, layers=lambda: LAYERS)
    collector.push(whole(12))
    families = exposed(collector)
    of_layers = families["sentinel_layer_adam_variance_max"].samples
    assert {s.labels["layer"]: s.value for s in of_layers} == {"embedding": 0.1, "h.0": 0.2, "h.1": 0.3, "head": 0.4}
    assert math.isnan(families["sentinel_layer_adam_variance_l1"].samples[2].value)
    assert families["sentinel_layer_global_step"].samples[0].value == 10
    (total,) = families["sentinel_adam_variance_max"].samples
    assert "layer" not in total.labels  # so that a sum over one name adds no total to its parts


def test_a_scrape_never_mixes_two_steps_while_training_goes_on() -> None:
    collector = StepCollector("tr8", 3)
    done = threading.Event()

    def train() -> None:
        step = 0
        while not done.is_set():
            step += 1
            collector.push(whole(step))

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        while not scraped(collector).get("sentinel_steps_total"):
            pass
        for _ in range(50):
            values = scraped(collector)
            of_the_step = [values[metric.name] for metric in (*SAMPLE_METRICS, *WINDOW_MAXIMA)]
            of_the_step += [values[metric.maximum_name] for metric in WINDOW_MAXIMA]
            assert set(of_the_step) == {values["sentinel_steps_total"]}
    finally:
        done.set()
        trainer.join()


@pytest.mark.parametrize("window_s", [0, 0.5, -1, math.inf, math.nan])
def test_a_window_that_is_none_is_refused(window_s: float) -> None:
    with pytest.raises(ValueError, match="window_s"):
        StepCollector("tr8", 3, window_s=window_s)
