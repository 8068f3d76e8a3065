"""The judge's formulas against numpy's, and a noise band against what its docstring says, block by block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.judge.noise_band import NoiseBand, PowerLaw, median, robust_sigma, wandering_sigma
from sentinel.judge.reference import Reference, compare
from sentinel.judge.schedule_changes import Regime
from sentinel.judge.thresholds import Thresholds

Values = np.ndarray[Any, np.dtype[np.float64]]
numbers = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40)


@given(numbers)
def test_the_median_is_numpy_s(values: list[float]) -> None:
    assert median(values) == pytest.approx(float(np.median(values)), abs=1e-9)
    assert robust_sigma(values) == pytest.approx(1.4826 * float(np.median(values)) / math.sqrt(2), abs=1e-9)


def chord_sigma(values: Values, lag: int) -> float:
    middles = range(lag, len(values) - lag, max(1, lag // 4))
    chords = np.sort([values[i] - (values[i - lag] + values[i + lag]) / 2 for i in middles])
    return float(chords[3 * len(chords) // 4] - chords[len(chords) // 2]) / 0.6745 / math.sqrt(1.5)


@given(st.integers(0, 9), st.integers(2, 120), st.sampled_from([(1,), (4,), (8, 16), (1, 4)]))
def test_a_series_wanders_by_its_chords(seed: int, n: int, lags: tuple[int, ...]) -> None:
    values = np.random.default_rng(seed).standard_normal(n).cumsum()
    long_enough = [chord_sigma(values, lag) for lag in lags if n >= 2 * lag + 4]
    assert wandering_sigma(values.tolist(), lags) == pytest.approx(max(long_enough, default=0.0))


@settings(deadline=None)
@given(st.integers(1, 10_000), st.integers(2, 60), st.floats(-0.5, 0.5), st.integers(0, 9))
def test_a_power_law_is_the_line_through_the_logarithms(first: int, n: int, slope: float, seed: int) -> None:
    steps = np.arange(first, first + 7 * n, 7)
    losses = 4.0 * steps**slope * np.exp(0.1 * np.random.default_rng(seed).standard_normal(n))
    law = PowerLaw.through(steps.tolist(), losses.tolist())
    wanted, offset = np.polyfit(np.log(steps), np.log(losses), 1)
    assert law.slope == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    at = 2 * first
    assert law.loss(at) == pytest.approx(math.exp(offset + wanted * math.log(at)), rel=1e-4)
    assert PowerLaw.through([0, 1], [2.0, 2.0]).slope == 0.0  # step 0 counts as step 1: one place has no slope


@pytest.mark.parametrize(("values", "learnt"), [(4, False), (5, True)])
def test_more_than_half_a_block_is_learnt_from(values: int, learnt: bool) -> None:
    band = NoiseBand(sigmas=6.0, floor=0.02)
    assert band.learn([2.0] * values) is learnt
    assert (band.level == 2.0) is learnt


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.5, 9)), min_size=1, max_size=8), st.integers(0, 300))
def test_a_reference_is_interpolated_between_its_points(gaps: list[tuple[int, float]], step: int) -> None:
    steps = np.cumsum([gap for gap, _ in gaps])
    losses = [loss for _, loss in gaps]
    found = Reference("a", list(zip(steps.tolist(), losses, strict=True))).loss(step)
    if steps[0] <= step <= steps[-1]:
        assert found == pytest.approx(float(np.interp(step, steps, losses)))
    else:
        assert found is None
    assert Reference("a", []).loss(step) is None


@pytest.mark.parametrize(("second", "leads"), [(2.0, None), (2.01, None), (2.0102, "a"), (1.98, "b")])
def test_a_run_leads_by_more_than_half_a_percent(second: float, leads: str | None) -> None:
    """0.5 % of the one behind; at 1, 2, 3, 5, 7, 10 … and where the shorter of the two ends."""
    runs = [Reference("a", [(1, 2.0), (40, 2.0)]), Reference("b", [(1, second), (25, second)])]
    found = compare(runs)
    assert [row.at for row in found.rows] == [1, 2, 3, 5, 7, 10, 20, 25]
    assert {row.leader for row in found.rows} == {leads}
    assert (found.leader, found.leads_since) == (leads, None if leads is None else 1)
    assert found.rows[0].ratios == (1.0, second / 2.0)


@pytest.mark.parametrize(
    ("column", "values", "widened"),
    [
        ("seqlen", [64, 64], 0.0),
        ("seqlen", [64, 72], 0.15),
        ("global_batch_samples", [8, 16], 0.05),
        ("curriculum_share", [0.5, 0.6], 0.30),
        ("curriculum_share", [1.0, None], 0.0),
        ("lr", [1.0, 1.02], 0.0),
        ("lr", [1.0, 1.03], 0.10),
        ("lr", [1.0, 1.49], 0.10),
        ("lr", [1.0, 1.51], 0.0),
        ("lr", [1.0, 0.5, 0.6], 0.25),
        ("lr", [1.0, 0.5, 1.0], 0.25),
        ("lr", [1.0, 0.99, 1.0], 0.0),
        ("lr", [1.0, 0.99, 0.98, 1.0], 0.25),
    ],
)
def test_a_change_widens_what_the_loss_may_do_until_64_samples_later(
    column: str, values: list[float | None], widened: float
) -> None:
    regime = Regime(Thresholds())
    for step, value in enumerate(values):
        regime.take(step, {column: value})
        regime.end_block(step, 8, value if column == "lr" else None)
    assert regime.widened == widened
    for samples in range(8, 56, 8):
        regime.end_block(9, 8, None)
        assert (regime.settle(0.0), regime.widened) == (False, widened), samples
    regime.end_block(9, 8, None)
    assert regime.settle(widened) is (widened > 0)
    assert regime.widened == 0.0
