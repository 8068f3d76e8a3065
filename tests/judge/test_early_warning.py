"""Early warnings: signals that rise together against their own trends, before a verdict and without one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sentinel.judge.detectors.early_warning import EarlyWarning, EarlyWarnings
from sentinel.judge.series import Series
from tests.support.rising_runs import RISE, STEPS, judged, noisy
from tests.support.there import there

ZERO = np.where(abs(np.arange(STEPS) - 567.5) < 28, 1e-6, 1.0)  # 56 steps of nothing


def warnings_of(series: Series) -> tuple[EarlyWarning, ...]:
    (found,) = [d for d in series.known.baseline.detectors if isinstance(d, EarlyWarnings)]
    return tuple(found.warnings)


def test_signals_that_rise_together_are_warned_of_and_are_no_event() -> None:
    series = judged(
        grad_norm=noisy(1 + 1.5 * RISE, 0.1, 2),
        adam_variance_max=noisy(0.1 * (1 + RISE), 0.02, 3),
    )
    (warning,) = warnings_of(series)
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
    assert [600 < warning.step < 900 for warning in warnings_of(series)] == [True]


def test_two_outliers_before_a_rise_do_not_put_its_warning_off() -> None:
    outliers = np.where(abs(np.arange(STEPS) - 487.5) < 8, 1e6, 1.0)
    series = judged(
        grad_norm=noisy((1 + 1.5 * RISE) * outliers, 0.1, 2),
        adam_variance_max=noisy(0.1 * (1 + RISE) * outliers, 0.02, 3),
    )
    assert [warning.step for warning in warnings_of(series)] == [696]  # as without them


def test_a_warning_passes_once_nothing_rises_any_more() -> None:
    back = np.where(np.arange(STEPS) < 760, RISE, 0.0)
    series = judged(grad_norm=noisy(1 + 3 * back, 0.1, 2), adam_variance_max=noisy(0.1 * (1 + 2 * back), 0.02, 3))
    (warning,) = warnings_of(series)
    assert series.early_warning is None
    assert 760 + 200 < there(warning.end_step) < STEPS


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
    assert warnings_of(judged(planned, **columns)) == ()


def test_a_learning_rate_that_rises_without_effect_is_warned_of() -> None:
    lr = 1e-3 * 2 ** (np.arange(STEPS) / 200)
    assert warnings_of(judged(lr=lr))[0].signals == ("lr",)


def test_a_learning_rate_that_fell_and_then_rises_past_its_peak_is_warned_of_there() -> None:
    fell = np.where(np.arange(STEPS) < 400, 1e-3, 2.5e-4 * 2 ** (np.clip(np.arange(STEPS) - 400, 0, None) / 100))
    (warning,) = warnings_of(judged(lr=fell))
    assert warning.signals == ("lr",)
    assert 600 < warning.step < 750  # from its old peak at step 600 on, and 12 blocks of a trend that began anew there


def test_a_divergence_that_is_known_is_no_warning() -> None:
    late = np.clip((np.arange(STEPS) - 1000) / 100, 0, 1)
    series = judged(loss=noisy(2 + 3 * RISE, 0.01, 1), grad_norm=noisy(1 + 5 * RISE + 90 * late, 0.1, 2))
    assert warnings_of(series)[0].step < there(series.alarm).verdict_step
    jumped = judged(loss=noisy(2.0 + (RISE > 0), 0.01, 1), grad_norm=noisy(1 + 9 * late, 0.1, 2))
    assert all(warning.step < there(jumped.alarm).verdict_step for warning in warnings_of(jumped))
    assert (series.early_warning, jumped.early_warning) == (None, None)


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
        assert warnings_of(series)  # of the loss alone where nothing else rises
        assert (None if series.alarm is None else series.alarm.verdict_step) == known
