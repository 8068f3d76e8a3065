"""From a trainer's records to what a probe has shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.judge.history import History
from sentinel.lab.tune.reading import Curve, ProbeReading, perplexity, perplexity_ratio, reading_of
from sentinel.vocabulary.codec import JSON, document
from sentinel.vocabulary.codec import read as decoded
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.sample import Record, RunFinished, RunStarted, Sample, Validation

LOSSES = st.floats(0, 20) | st.sampled_from([math.nan, math.inf])


def validation(step: int, loss: float) -> Validation:
    return Validation(attempt=1, global_step=step, time_unix_s=0.0, loss=loss, seqlen=64)


def sample(step: int, loss: float = 3.0, *, skipped: bool = False) -> Sample:
    return Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=loss, consumed_tokens=512 * step, skipped=skipped)


def read(*records: Record) -> ProbeReading:
    return reading_of(History(records).latest)


def test_the_ratio_is_of_perplexities_not_of_losses() -> None:
    assert perplexity_ratio(math.log(26), math.log(20)) == pytest.approx(1.3)
    assert perplexity(math.log(20)) == pytest.approx(20.0)


def test_a_perplexity_above_1_3_times_the_best_before_fluctuates_and_the_first_never_does() -> None:
    best = math.log(20)
    assert Curve(((5, 9.0), (10, best), (15, best + math.log(1.31)))).fluctuates_at() == 15
    assert Curve(((5, 9.0), (10, best), (15, best + math.log(1.29)))).fluctuates_at() is None
    assert Curve(((5, 9.0),)).fluctuates_at() is None


def test_nan_is_the_worst_ratio_and_never_the_best_perplexity() -> None:
    curve = Curve(((5, math.nan), (10, 3.0), (15, 3.1)))
    assert curve.fluctuates_at() == 5
    assert curve.ratios()[1:] == ((10, 1.0), (15, perplexity_ratio(3.1, 3.0)))


def test_a_training_loss_that_is_nan_is_a_fluctuation_and_a_skipped_step_is_none() -> None:
    assert read(sample(1), sample(2, math.nan)).seen(1.3, 30).fluctuated_at == 2
    assert read(sample(1), sample(2, math.inf, skipped=True)).seen(1.3, 30).fluctuated_at is None


def test_what_comes_after_the_horizon_does_not_count() -> None:
    records = [validation(10, 3.0), validation(30, 2.9), validation(40, 9.0)]
    seen = read(*records).seen(1.3, 30)
    assert (seen.fluctuated_at, seen.calm_through) == (None, 30)
    assert read(*records).seen(1.3, 35).fluctuated_at == 40, "the first validation at or after the horizon does"


def test_a_run_that_is_over_by_itself_has_ended_and_one_that_was_stopped_has_not() -> None:
    def finished(reason: str) -> RunFinished:
        return RunFinished(attempt=1, global_step=9, time_unix_s=0.0, reason=reason)

    assert read(sample(9), finished("finished")).seen(1.3, 30).ended
    assert not read(sample(9), finished("sigterm")).seen(1.3, 30).ended


@given(st.lists(st.tuples(st.integers(1, 90), LOSSES), max_size=12), st.integers(1, 100))
def test_what_is_recorded_of_a_reading_says_the_same_as_the_reading(points: list[tuple[int, float]], step: int) -> None:
    started = RunStarted(attempt=1, time_unix_s=0.0, seed=7)
    reading = read(started, sample(step), *(validation(*point) for point in points))
    again = decoded(ProbeReading, load_object(dump_json(document(reading))), "result", JSON)
    assert again.seen(1.3, 50) == reading.seen(1.3, 50)
    assert (again.seed, again.steps, again.consumed_tokens) == (7, step, 512 * step)
