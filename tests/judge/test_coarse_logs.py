"""A climb is a climb at every scale: logs of 40 to 60 points, one line in many steps, with little noise or some."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from sentinel.judge.events import Event
from sentinel.judge.noise_band import NoiseBand
from sentinel.judge.readings import Readings
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds

Array = NDArray[np.float64]
SHAPES = ("flat", "power", "fast")


def healthy(shape: str, points: int, noise: float, seed: int = 0) -> Array:
    x = np.arange(points, dtype=float)
    course = {"flat": 2 + 0 * x, "power": 4 * (x + 1) ** -0.15, "fast": 2 + 3 * np.exp(-x / 6)}[shape]
    return np.asarray(course * (1 + noise * np.random.default_rng(seed).standard_normal(points)))


def called(loss: Array, interval: int) -> list[Event]:
    steps = interval * np.arange(1, len(loss) + 1)
    judged = Series(Thresholds())
    judged.push_readings(Readings(attempt=1, steps=steps, columns={"loss": loss}))
    return [event for event in judged.events if event.recommend_rollback]


@pytest.mark.parametrize(("shape", "least"), [("flat", 48), ("power", 33), ("fast", 20)])
def test_a_jump_that_stays_is_found_in_a_log_of_few_points(shape: str, least: int) -> None:
    """Of 48 by 10 and 30 %. Where the loss still falls fast, the lower one is within what it falls by."""
    found = 0
    for points, at, size, noise, interval in product((40, 60), (16, 20, 24), (0.1, 0.3), (0.0, 0.003), (100, 2000)):
        loss = healthy(shape, points, noise)
        loss[at:] = (
            loss[at] * (1 + size) * (loss[at:] / loss[at] if shape == "flat" else np.linspace(1, 0.98, points - at))
        )
        found += any(event.onset_range[1] >= (at - 2) * interval for event in called(loss, interval))
    assert found >= least


@pytest.mark.parametrize("shape", SHAPES)
def test_a_log_of_few_points_that_falls_is_healthy(shape: str) -> None:
    for points, noise, interval, seed in product((40, 90), (0.0, 0.001, 0.01), (20, 500), range(4)):
        assert called(healthy(shape, points, noise, seed), interval) == []


@pytest.mark.parametrize(("interval", "noise"), [*product((1, 5, 10, 20, 50), (0.0, 0.001, 0.003))])
def test_a_smooth_rise_by_nine_per_cent_over_1400_steps_is_a_climb(interval: int, noise: float) -> None:
    for begins, falls in product((600, 2000, 6000), (0.0, 0.08)):
        if begins < 16 * interval:
            continue  # too few losses to know a best
        steps = np.arange(1, begins + 1401, interval)
        course = 4 * np.minimum(steps, begins) ** -falls
        loss = course * (1 + 0.09 * np.maximum(0, steps - begins) / 1400)
        loss = loss * (1 + noise * np.random.default_rng(begins).standard_normal(len(loss)))
        judged = Series(Thresholds())
        judged.push_readings(Readings(attempt=1, steps=steps, columns={"loss": loss}))
        assert [e.verdict_step > begins for e in judged.events if e.recommend_rollback] == [True]


def test_a_rise_as_high_as_one_that_came_back_is_waited_for() -> None:
    loss = healthy("power", 60, 0.0)
    loss[20:26] *= 1.1
    loss[40:52] = loss[40] * 1.1
    assert called(loss[:48], 100) == []


def test_eight_losses_in_a_row_are_a_rise_and_seven_are_none() -> None:
    loss = healthy("fast", 60, 0.0)
    loss[24:] = 1.1 * loss[24]
    assert called(loss[:31], 100) == []
    assert [event.verdict_step for event in called(loss, 100)] == [3200]


def test_three_readings_of_a_sparse_log_are_enough_and_the_reason_says_what_a_denser_one_gives() -> None:
    steady = healthy("flat", 48, 0.003)
    stands = np.concatenate([steady, 1.5 * healthy("flat", 3, 0.003)])
    assert called(stands[:-1], 100) == called(stands, 90) == []
    (event,) = called(stands, 100)
    assert event.verdict_step == 5100
    (event,) = called(np.concatenate([steady, 1.5 * healthy("flat", 3, 0.003)]), 2000)
    assert event.verdict_step == 51 * 2000
    assert "of one reading in 2000 steps: one in 20 could have told by step 98100" in event.reason
    (event,) = called(np.concatenate([steady, 1.5 * healthy("flat", 200, 0.003)]), 1)
    assert "of one reading in" not in event.reason


def test_the_slope_of_a_loss_that_rises_is_no_noise_of_it() -> None:
    (event,) = called(np.concatenate([healthy("flat", 48, 0.003), [2.5, 4.0, 5.5]]), 2000)
    assert event.verdict_step == 51 * 2000


def test_the_bend_of_the_first_losses_is_no_noise_of_a_log_of_few_points() -> None:
    """With a straight chord it is taken for half as much noise again, and the band is as much wider."""
    sigmas = []
    for seed in range(9):
        losses = 2 + 20 * np.arange(1, 65) ** -0.6 + 0.1 * np.random.default_rng(seed).standard_normal(64)
        band = NoiseBand(sigmas=6.0, floor=0.02)
        for block in losses.reshape(-1, 8):
            band.learn(block.tolist())
        sigmas.append(band.sigma)
    assert np.median(sigmas) < 0.18, sigmas
