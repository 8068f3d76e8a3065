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


def bent_if_it_falls(blocks: list[Values], i: int, straight: float) -> float:
    """inf from the 64th block on, and where the last 12 blocks do not fall by four times their neighbours' noise."""
    values = np.concatenate(blocks[max(0, i - 11) : i + 1])
    noise = 1.4826 * float(np.median(np.concatenate([np.abs(np.diff(b)) for b in blocks[max(0, i - 7) : i + 1]])))
    quarter = len(values) // 4
    if (
        i >= 64
        or straight <= noise / math.sqrt(2)
        or np.median(values[:quarter]) - np.median(values[-quarter:]) <= 4 * noise / math.sqrt(2)
    ):
        return math.inf
    first = 8 * (i + 1) - len(values) + 1
    places = (first + np.arange(len(values))) ** -0.5
    sigmas = [0.0]
    for lag in (8, 16):
        middles = np.arange(lag, len(values) - lag, lag // 4)
        if len(values) < 2 * lag + 4:
            continue
        ends = [np.array([m - lag, m + lag]) for m in middles]
        lines = [np.interp(-places[m], -places[e], values[e]) for m, e in zip(middles, ends, strict=True)]
        shares = [np.interp(-places[m], -places[e], [0.0, 1.0]) for m, e in zip(middles, ends, strict=True)]
        chords = [
            (values[m] - line) / math.sqrt(1 + share**2 + (1 - share) ** 2)
            for m, line, share in zip(middles, lines, shares, strict=True)
        ]
        ordered = np.sort(chords)
        sigmas.append(float(ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 2]) / 0.6745)
    return max(sigmas)


def expected_band(blocks: list[Values], sigmas: float, floor: float) -> tuple[float, float, float]:
    """(level, sigma, upper) after the blocks: noise is taken anew at each of 8, then at each 4th of 64, then 8th."""
    medians = [float(np.median(block)) for block in blocks]
    level = min(float(np.median(medians[-4:])), float(np.mean(medians[-2:])))
    at = [i for i in range(len(blocks)) if i < 8 or i % (4 if i < 64 else 8) == 0]
    wandering = []
    for i in at:
        values = np.concatenate(blocks[max(0, i - 11) : i + 1])
        wandering.append(max((chord_sigma(values, lag) for lag in (8, 16) if len(values) >= 2 * lag + 4), default=0.0))
        wandering[-1] = min(wandering[-1], bent_if_it_falls(blocks, i, wandering[-1]))
    last = blocks[max(0, at[-1] - 7) : at[-1] + 1]
    neighbours = 1.4826 * float(np.median(np.concatenate([np.abs(np.diff(b)) for b in last]))) / math.sqrt(2)
    sigma = max(neighbours, float(np.mean(wandering[-2:])))
    wide = max(floor, 0.0 if len(blocks) >= 2 else 0.25)
    return level, sigma, level + max(sigmas * sigma, wide * abs(level))


@pytest.mark.parametrize("wander", [0.0, 0.3])
@pytest.mark.parametrize("falls", [0.0, 40.0])
@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_a_band_is_what_its_blocks_say(wander: float, falls: float, floor: float) -> None:
    rng = np.random.default_rng(7)
    blocks: list[Values] = []
    band = NoiseBand(sigmas=6.0, floor=floor)
    walk = 50.0
    for n in range(100):
        walk += wander * rng.standard_normal()
        blocks.append(walk + falls * (8 * n + np.arange(1, 9)) ** -0.7 + 0.1 * rng.standard_normal(8))
        assert band.learn(blocks[-1].tolist())
        assert band.ready is (n >= 1)
        level, sigma, upper = expected_band(blocks, 6.0, floor)
        assert (band.level, band.sigma, band.upper) == (
            pytest.approx(level),
            pytest.approx(sigma),
            pytest.approx(upper),
        ), n
        assert band.edge(0.5) == pytest.approx(max(upper, 1.5 * band.lowest))
    assert band.lowest == pytest.approx(min(expected_band(blocks[: n + 1], 6.0, floor)[0] for n in range(100)))


@pytest.mark.parametrize(("values", "learnt"), [(4, False), (5, True)])
def test_more_than_half_a_block_is_learnt_from(values: int, learnt: bool) -> None:
    band = NoiseBand(sigmas=6.0, floor=0.02)
    assert band.learn([2.0] * values) is learnt
    assert (band.level == 2.0) is learnt


@pytest.mark.parametrize(("outliers", "blocks", "height"), [(2, 1, 1.0), (3, 1, 2.0), (3, 129, 2.0), (3, 130, 1.0)])
def test_three_outliers_within_128_blocks_are_part_of_the_noise(outliers: int, blocks: int, height: float) -> None:
    block = [2.0, 2.1] * 4
    band = NoiseBand(sigmas=6.0, floor=0.0)
    for _ in range(9):
        band.learn(block)
    plain = band.upper - band.level
    for more in range(outliers):
        band.outlier(band.level + plain * (2.0 + more))
    for _ in range(blocks):
        band.learn(block)
    assert (band.upper - band.level) / plain == pytest.approx(height)
    assert band.begun_anew().level != band.begun_anew().level  # nan: it knows the outliers alone


@pytest.mark.parametrize(("high", "height"), [(19.0, 19.0), (21.0, 20.0), (0.5, 1.0)])
def test_no_tail_is_heavier_than_20(high: float, height: float) -> None:
    band = NoiseBand(sigmas=6.0, floor=0.0)
    for _ in range(9):
        band.learn([2.0, 2.1] * 4)
    plain = band.upper - band.level
    for _ in range(3):
        band.outlier(band.level + plain * high)
    assert (band.upper - band.level) / plain == pytest.approx(height)


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


@pytest.mark.parametrize(("later", "height"), [(61, 9.0), (62, 2.0)])
def test_the_last_64_outliers_are_remembered(later: int, height: float) -> None:
    band = NoiseBand(sigmas=6.0, floor=0.0)
    for _ in range(9):
        band.learn([2.0, 2.1] * 4)
    plain = band.upper - band.level
    for high in [9.0] * 3 + [2.0] * later:
        band.outlier(band.level + plain * high)
    assert (band.upper - band.level) / plain == pytest.approx(height)
