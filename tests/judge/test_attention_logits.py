"""Attention logits: a warning of their own, which the trends of other signals neither make nor hide."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sentinel.judge.detectors.attention_logits import AttentionLogits, LogitWarning
from sentinel.judge.readings import Readings
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from tests.support.rising_runs import RISE, STEPS, judged, noisy


def warnings_of(series: Series) -> tuple[LogitWarning, ...]:
    (found,) = [d for d in series.known.baseline.detectors if isinstance(d, AttentionLogits)]
    return tuple(found.warnings)


def test_signals_that_rise_together_are_no_warning_of_logits_and_hide_none() -> None:
    rising = {"grad_norm": noisy(1 + 3 * RISE, 0.1, 2), "adam_variance_max": noisy(0.1 * (1 + 2 * RISE), 0.02, 3)}
    series = judged(**rising)
    assert (series.early_warning is not None, series.logit_warning) == (True, None)
    warned = series.early_warning.step if series.early_warning else 0
    logits = np.where(np.arange(1, STEPS + 1) < warned + 30, 20.0, 150.0)
    (warning,) = warnings_of(judged(**rising, attention_logit_max=logits))
    assert warning.step - warned - 30 in range(9)


def every_tenth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.arange(1, STEPS + 1) % 10 == 0, values, np.nan)


def with_logits(values: NDArray[np.float64], *, at_each_step: bool = False, resumed: int = STEPS) -> Series:
    """A healthy run whose largest attention logits are these; from `resumed` on in a second attempt."""
    series = Series(Thresholds())
    steps = np.arange(1, STEPS + 1)
    columns = {"loss": noisy(2.0, 0.01, 1), "attention_logit_max": values if at_each_step else every_tenth(values)}
    there = np.ones(STEPS, np.bool_) if at_each_step else steps % 10 == 0
    for attempt, part in ((1, slice(0, resumed)), (2, slice(resumed, STEPS))):
        found = {name: column[part] for name, column in columns.items()}
        measured = {"attention_logit_max": there[part]}
        if len(steps[part]):
            series.push_readings(Readings(attempt=attempt, steps=steps[part], columns=found, measured=measured))
    return series


@pytest.mark.parametrize("at_each_step", [False, True])
def test_an_attention_logit_above_its_limit_is_warned_of_once_until_it_has_doubled(at_each_step: bool) -> None:
    logits = np.where(np.arange(1, STEPS + 1) < 300, 20.0, 150.0)
    (warning,) = warnings_of(with_logits(logits, at_each_step=at_each_step))
    assert warning.step - 300 in range(9)
    assert "attention logit is above 100, which the rung key qk_clip limits: a divergence may follow" in warning.reason
    assert warning.end_step is not None  # it has not doubled for 256 samples
    doubled = np.where(np.arange(1, STEPS + 1) < 700, logits, 301.0)
    assert [w.step // 100 for w in warnings_of(with_logits(doubled, at_each_step=at_each_step))] == [3, 7]
    assert [w.step // 100 for w in warnings_of(with_logits(logits, at_each_step=at_each_step, resumed=700))] == [3, 7]


def test_a_logit_that_is_no_number_is_the_largest_and_one_that_grows_below_the_limit_is_healthy() -> None:
    (warning,) = warnings_of(with_logits(np.where(np.arange(STEPS) < 300, 20.0, np.nan), at_each_step=True))
    assert warning.step - 300 in range(9)
    assert warnings_of(with_logits(np.geomspace(0.1, 99, STEPS))) == ()


@pytest.mark.parametrize("slope", [1e-4, 2e-4])
def test_a_logit_above_its_limit_makes_no_slow_climb_a_divergence_sooner(slope: float) -> None:
    steps = np.arange(1, STEPS + 1)
    climbs = noisy(2.0, 0.01, 1) + slope * np.clip(steps - 600, 0, None)
    alarms = []
    for logit in (20.0, 150.0):
        series = judged(loss=climbs, attention_logit_max=np.where(steps < 700, 20.0, logit))
        assert series.alarm is not None
        alarms.append((series.alarm.verdict_step, series.alarm.onset_range))
    assert alarms[0] == alarms[1]
