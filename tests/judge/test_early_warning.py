"""Early warnings: signals that rise together against their own trends, before a verdict and without one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sentinel.judge.readings import Readings
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds

STEPS = 1200
RISE = np.clip((np.arange(STEPS) - 600) / 300, 0, 1)  # from step 601 on, over 300 steps
ZERO = np.where(abs(np.arange(STEPS) - 567.5) < 28, 1e-6, 1.0)  # 56 steps of nothing


def noisy(level: NDArray[np.float64] | float, noise: float, seed: int) -> NDArray[np.float64]:
    return level * (1 + noise * np.random.default_rng(seed).standard_normal(STEPS))


def judged(planned: tuple[int, ...] = (), **columns: NDArray[np.float64]) -> Series:
    healthy = {
        "loss": noisy(2.0, 0.01, 1),
        "grad_norm": noisy(1.0, 0.1, 2),
        "adam_variance_max": noisy(0.1, 0.02, 3),
        "update_norm": noisy(0.2, 0.02, 4),
        "lr": np.full(STEPS, 1e-3),
    }
    series = Series(Thresholds(), planned=planned)
    series.push_readings(Readings(attempt=1, steps=np.arange(1, STEPS + 1), columns=healthy | columns))
    return series


def test_signals_that_rise_together_are_warned_of_and_are_no_event() -> None:
    series = judged(
        grad_norm=noisy(1 + 1.5 * RISE, 0.1, 2),
        adam_variance_max=noisy(0.1 * (1 + RISE), 0.02, 3),
    )
    (warning,) = series.warnings
    assert set(warning.signals) == {"grad_norm", "adam_variance_max"}
    assert 600 - 32 < warning.since_step < warning.step < 900
    assert (series.alarm, series.events) == (None, ())
    assert "above their own trends" in warning.reason


def test_one_stretch_of_outliers_does_not_hide_the_rise_after_it() -> None:
    outliers = np.where(abs(np.arange(STEPS) - 450) < 9, 1e-6, 1.0)
    series = judged(
        grad_norm=noisy((1 + 1.5 * RISE) * outliers, 0.1, 2),
        adam_variance_max=noisy(0.1 * (1 + RISE) * outliers, 0.02, 3),
    )
    assert [600 < warning.step < 900 for warning in series.warnings] == [True]


def test_two_outliers_before_a_rise_do_not_put_its_warning_off() -> None:
    outliers = np.where(abs(np.arange(STEPS) - 487.5) < 8, 1e6, 1.0)
    series = judged(
        grad_norm=noisy((1 + 1.5 * RISE) * outliers, 0.1, 2),
        adam_variance_max=noisy(0.1 * (1 + RISE) * outliers, 0.02, 3),
    )
    assert [warning.step for warning in series.warnings] == [696]  # as without them


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
    (warning,) = with_logits(logits, at_each_step=at_each_step).warnings
    assert (warning.signals, warning.step - 300 in range(9)) == (("attention_logit_max",), True)
    assert "above 100, which the rung key qk_clip limits: a divergence may follow" in warning.reason
    assert warning.end_step is not None  # it has not doubled for 256 samples
    doubled = np.where(np.arange(1, STEPS + 1) < 700, logits, 301.0)
    assert [w.step // 100 for w in with_logits(doubled, at_each_step=at_each_step).warnings] == [3, 7]
    assert [w.step // 100 for w in with_logits(logits, at_each_step=at_each_step, resumed=700).warnings] == [3, 7]


def test_a_logit_that_is_no_number_is_the_largest_and_one_that_grows_below_the_limit_is_healthy() -> None:
    (warning,) = with_logits(np.where(np.arange(STEPS) < 300, 20.0, np.nan), at_each_step=True).warnings
    assert warning.signals == ("attention_logit_max",)
    assert with_logits(np.geomspace(0.1, 99, STEPS)).warnings == ()


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


def test_a_warning_passes_once_nothing_rises_any_more() -> None:
    back = np.where(np.arange(STEPS) < 760, RISE, 0.0)
    series = judged(grad_norm=noisy(1 + 3 * back, 0.1, 2), adam_variance_max=noisy(0.1 * (1 + 2 * back), 0.02, 3))
    (warning,) = series.warnings
    assert series.warning is None
    assert warning.end_step is not None
    assert 760 + 200 < warning.end_step < STEPS


@pytest.mark.parametrize(
    ("planned", "columns"),
    [
        ((), {}),
        ((), {"grad_norm": np.where(np.arange(STEPS) % 200 == 7, 30.0, noisy(1.0, 0.1, 2))}),  # outliers
        ((601,), {"grad_norm": noisy(np.where(RISE > 0, 3.0, 1.0), 0.1, 2), "loss": noisy(2 + (RISE > 0), 0.01, 1)}),
        ((), {"lr": np.linspace(1e-6, 1e-3, STEPS), "loss": noisy(np.geomspace(9, 2, STEPS), 0.01, 1)}),  # a warmup
        ((), {"grad_norm": np.where((np.arange(STEPS) > 600) & (np.arange(STEPS) % 16 == 5), 9.0, noisy(1, 0.1, 2))}),
        ((), {"grad_norm": noisy(np.where(abs(np.arange(STEPS) - 600) < 6, 9.0, 1.0), 0.1, 2)}),  # a burst
        ((), {"lr": 1e-3 * (0.6 + 0.4 * np.cos(np.arange(STEPS) / 100))}),  # it rises to what it was before
        ((), {"lr": np.where(np.arange(STEPS) < 600, 1e-3, 1e-3 * np.clip(RISE, 1e-2, 1))}),  # a new warmup
        ((), {"grad_norm": noisy(np.where(abs(np.arange(STEPS) - 600) < 9, 1e-6, 1.0), 0.1, 2)}),  # no gradient
        ((), {"grad_norm": noisy(np.geomspace(1, 1.3, STEPS), 0.1, 2)}),  # a slow drift of one
        ((), {"grad_norm": noisy(ZERO, 0.1, 2), "adam_variance_max": noisy(0.1 * ZERO, 0.02, 3)}),  # and then back
    ],
)
def test_what_is_healthy_is_not_warned_of(planned: tuple[int, ...], columns: dict[str, NDArray[np.float64]]) -> None:
    assert judged(planned, **columns).warnings == ()


def test_a_learning_rate_that_rises_without_effect_is_warned_of() -> None:
    lr = 1e-3 * 2 ** (np.arange(STEPS) / 200)
    assert judged(lr=lr).warnings[0].signals == ("lr",)


def test_a_learning_rate_that_fell_and_then_rises_past_its_peak_is_warned_of_there() -> None:
    fell = np.where(np.arange(STEPS) < 400, 1e-3, 2.5e-4 * 2 ** (np.clip(np.arange(STEPS) - 400, 0, None) / 100))
    (warning,) = judged(lr=fell).warnings
    assert warning.signals == ("lr",)
    assert 600 < warning.step < 750  # from its old peak at step 600 on, and 12 blocks of a trend that began anew there


def test_a_divergence_that_is_known_is_no_warning() -> None:
    late = np.clip((np.arange(STEPS) - 1000) / 100, 0, 1)
    series = judged(loss=noisy(2 + 3 * RISE, 0.01, 1), grad_norm=noisy(1 + 5 * RISE + 90 * late, 0.1, 2))
    assert series.alarm is not None
    assert series.warnings[0].step < series.alarm.verdict_step
    jumped = judged(loss=noisy(2.0 + (RISE > 0), 0.01, 1), grad_norm=noisy(1 + 9 * late, 0.1, 2))
    assert jumped.alarm is not None
    assert all(warning.step < jumped.alarm.verdict_step for warning in jumped.warnings)
    assert (series.warning, jumped.warning) == (None, None)


@pytest.mark.parametrize(
    ("climbs", "alone", "agreed"),
    [(0.015, None, 864), (0.02, 904, 856), (0.03, 872, 800)],
)
def test_a_climb_is_known_sooner_where_an_early_warning_rests_on_more_than_the_loss(
    climbs: float, alone: int | None, agreed: int
) -> None:
    loss = noisy(2.0 * (1 + climbs * RISE), 0.01, 1)
    for known, rises in ((alone, 0.0), (agreed, 0.5)):  # half as much again: inside the bands of both
        series = judged(
            loss=loss,
            grad_norm=noisy(1 + rises * RISE, 0.1, 2),
            adam_variance_max=noisy(0.1 * (1 + rises * RISE), 0.02, 3),
        )
        assert series.warnings  # of the loss alone where nothing else rises
        assert (None if series.alarm is None else series.alarm.verdict_step) == known
