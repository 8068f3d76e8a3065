"""A level that stands is a divergence whatever the noise; a level that was left downward is no news when it is back."""

from __future__ import annotations

import math
import random

import pytest

from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample


def judged(losses: list[float], every: int = 1) -> tuple[Series, list[int]]:
    """The series, and the readings at which an alarm was raised."""
    series, raised, before = Series(Thresholds()), [], None
    for n, loss in enumerate(losses):
        series.push(Sample(attempt=1, global_step=(n + 1) * every, time_unix_s=0.0, loss=loss))
        if series.alarm is not None and before is None:
            raised.append(n)
        before = series.alarm
    return series, raised


def wandering(readings: int, sd: float, rng: random.Random) -> list[float]:
    """Noise with autocorrelation 0.97: one independent value in 32."""
    value, noise = 0.0, []
    for _ in range(readings):
        value = 0.97 * value + rng.gauss(0, sd * math.sqrt(1 - 0.97**2))
        noise.append(value)
    return noise


def test_a_level_that_was_never_shown_is_not_waited_for_longer_than_ten_patiences_and_64_readings() -> None:
    """From 2.7 to 5.9, then at 4.8 for good: four standard errors of such noise are never reached."""
    noise = wandering(900, 0.7, random.Random(4))
    losses = [2.7 + 3 * math.exp(-n / 60) + noise[n] for n in range(500)]
    losses += [5.9 - 1.1 * min(1, n / 20) + 0.3 * noise[500 + n] for n in range(400)]
    series, raised = judged(losses, every=32)
    assert series.alarm is not None
    assert len([n for n in raised if n >= 500]) == 1
    assert raised[-1] <= 500 + 64


@pytest.mark.parametrize("depth", [0.08, 0.2])
@pytest.mark.parametrize("lasts", [60, 150, 300, 500, 900])
def test_dips_that_the_band_has_learned_are_no_divergence_when_they_end(lasts: int, depth: float) -> None:
    rng = random.Random(lasts)
    losses = [
        (2.5 + 2 * math.exp(-n / 300)) * (1 - depth * (n > 1500 and n % 1500 < lasts)) * (1 + rng.gauss(0, 0.01))
        for n in range(6000)
    ]
    assert judged(losses)[1] == []


@pytest.mark.parametrize(("stands", "lr", "is_known"), [(1200, 1.0, True), (300, 0.1, True), (300, 1.0, False)])
def test_a_lower_level_that_has_stood_or_has_a_lower_rate_is_the_level_to_keep(
    stands: int, lr: float, is_known: bool
) -> None:
    rng, series = random.Random(1), Series(Thresholds())
    for n in range(2000 + stands + 400):
        level = 2.0 if 2000 <= n < 2000 + stands else 2.5
        rate = 1e-3 * (lr if n >= 1990 else 1.0)
        loss = level * (1 + rng.gauss(0, 0.01))
        series.push(Sample(attempt=1, global_step=n + 1, time_unix_s=0.0, loss=loss, lr=rate))
    assert (series.alarm is not None) == is_known


def test_an_alarm_after_a_dip_ends_when_the_loss_is_back_at_the_level_from_before_it() -> None:
    rng = random.Random(2)
    levels = [2.5] * 1500 + [2.1] * 200 + [3.5] * 150 + [2.5] * 300
    series, raised = judged([level * (1 + rng.gauss(0, 0.01)) for level in levels])
    assert 1700 <= raised[0] < 1850
    assert (series.alarm, series.episode) == (None, None)
