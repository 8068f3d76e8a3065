"""Correlation: what the plain coefficient claims, and what is left of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.signal import lfilter

from sentinel.judge.analysis.correlation.columns import correlate, correlate_readings, ratios
from sentinel.judge.analysis.correlation.lagged import (
    StepGrid,
    autocorrelation,
    autoregression,
    cross_correlation,
    n_effective,
)
from sentinel.judge.analysis.correlation.table import Correlations, LagProfile, correlations, holm
from sentinel.judge.readings import Readings
from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import Sample

Array = NDArray[np.float64]
N = 1000


def ar1(phi: float, n: int, rng: np.random.Generator) -> Array:
    found: Array = lfilter([1], [1, -phi], rng.standard_normal(n + 500))[500:]
    return found


def against(signal: Array, ratio: Array, steps: NDArray[np.int64] | None = None) -> Correlations:
    return correlations(
        {"loss_ratio": ratio, "grad_norm": signal}, np.arange(len(ratio)) if steps is None else steps, always=()
    )


def found_somewhere(profile: LagProfile) -> bool:
    return bool((profile.p_adjusted < 0.05).any())


# --- the plain coefficient, as Table 3 has it


def test_infinite_ratios_are_left_out_and_counted_and_skipped_steps_left_out() -> None:
    ratios = [1.0, math.inf, 1.2, 1.1, None, 1.4]
    samples = [
        Sample(
            attempt=1, global_step=i, time_unix_s=0.0, loss=1.0, loss_ratio=r, adam_variance_l1=float(i), skipped=i == 3
        )
        for i, r in enumerate(ratios)
    ]
    found = correlate(samples)
    row = found.rows[0]
    assert found.infinite_ratios == 1
    assert (row.signal, row.n, row.method, row.lag) == ("adam_variance_l1", 4, "plain", 0)
    assert row.pearson_r == pytest.approx(
        stats.pearsonr([0.0, 2.0, 4.0, 5.0], [1.0, 1.2, 1.0, 1.4]).statistic, abs=1e-9
    )


def test_table_3s_signals_come_first_and_always_others_where_they_vary() -> None:
    rng = np.random.default_rng(0)
    columns = {
        "loss_ratio": rng.standard_normal(50),
        "lr": np.full(50, 1e-4),
        "grad_norm": rng.standard_normal(50),
        "adam_variance_max[layer 3]": rng.standard_normal(50),
    }
    plain = [r for r in correlations(columns, np.arange(50)).rows if r.method == "plain"]
    assert [r.signal for r in plain] == [
        *("adam_variance_l1", "adam_variance_max", "grad_norm", "adam_variance_max[layer 3]"),
    ]
    assert (plain[0].n, math.isnan(plain[0].pearson_r), math.isnan(plain[0].p_value_adjusted)) == (0, True, True)


@pytest.mark.parametrize("n", range(6))
def test_a_handful_of_samples_is_no_error(n: int) -> None:
    samples = [
        Sample(attempt=1, global_step=i, time_unix_s=0.0, loss=1.0, loss_ratio=1.0 + i % 2, adam_variance_l1=float(i))
        for i in range(n)
    ]
    assert {r.signal for r in correlate(samples).rows} == {"adam_variance_l1", "adam_variance_max"}


def test_readings_tell_what_their_samples_tell() -> None:
    rng = np.random.default_rng(0)
    minimum = LossMinimum()
    samples = []
    for step in range(1, 200):
        loss = math.nan if step == 50 else 2 + float(rng.standard_normal()) / 10
        seqlen = 64 if step < 90 else 128
        samples.append(
            Sample(
                attempt=1,
                global_step=step,
                time_unix_s=0.0,
                loss=loss,
                loss_ratio=minimum.push(loss, seqlen),
                seqlen=seqlen,
                grad_norm=None if step % 7 == 0 else float(rng.standard_normal()),
                skipped=step == 77,
            )
        )
    readings = Readings.of(samples)
    made = ratios(readings.steps, readings.columns["loss"], readings.columns["seqlen"])
    assert made == pytest.approx([s.loss_ratio for s in samples], abs=0)
    for mine, theirs in zip(correlate_readings([readings]).rows, correlate(samples).rows, strict=True):
        assert repr(mine) == repr(theirs)
    without = [replace(s, loss_ratio=None) for s in samples]
    assert repr(correlate(without)) == repr(correlate(samples))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_minimum_goes_back_with_the_run_as_it_does_in_a_checkpoint(data: st.DataObject) -> None:
    saved: dict[int, list[tuple[int | None, float]]] = {0: []}
    steps, losses, lengths, told = [], [], [], []
    losses_drawn = st.sampled_from([1.0, 1.5, 2.0, 3.0, math.nan, math.inf])
    for _ in range(data.draw(st.integers(1, 4))):
        step = data.draw(st.sampled_from(sorted(saved)))
        saved = {at: state for at, state in saved.items() if at <= step}
        minimum = LossMinimum.load(saved[step])
        for _ in range(data.draw(st.integers(1, 6))):
            step += 1
            loss, length = data.draw(losses_drawn), data.draw(st.sampled_from([8, 16]))
            steps.append(step)
            losses.append(loss)
            lengths.append(float(length))
            told.append(minimum.push(loss, length))
            saved[step] = minimum.state()
    made = ratios(np.array(steps), np.array(losses), np.array(lengths))
    assert made.tolist() == told
    told_by_source = np.where(np.arange(len(told)) % 2, 9.0, np.nan)
    mixed = ratios(np.array(steps), np.array(losses), np.array(lengths), told_by_source).tolist()
    assert mixed == [9.0 if i % 2 else ratio for i, ratio in enumerate(told)]


# --- lags


def naive(x: Array, y: Array, k: int) -> tuple[float, int]:
    pairs = [(x[t], y[t + k]) for t in range(len(x)) if 0 <= t + k < len(y)]
    finite = np.array([p for p in pairs if np.isfinite(p).all()]).reshape(-1, 2)
    if len(finite) < 3 or np.ptp(finite[:, 0]) == 0 or np.ptp(finite[:, 1]) == 0:
        return math.nan, len(finite)
    return float(stats.pearsonr(finite[:, 0], finite[:, 1]).statistic), len(finite)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 45), st.sampled_from([0.0, 0.3]), st.booleans())
def test_every_lag_is_scipys_of_its_own_pairs(seed: int, n: int, lags: int, missing: float, far: bool) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(-100, 100, (2, n)) + 1e6 * far
    x, y = (np.where(rng.random(n) < missing, np.nan, c) for c in (x, y))
    r, pairs = cross_correlation(x, y, lags)
    for k in range(-lags, lags + 1):
        expected, count = naive(x, y, k)
        assert pairs[k + lags] == count
        assert r[k + lags] == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_long_series_are_cut_into_blocks_and_lose_nothing() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 30_000))
    for gap in (False, True):
        if gap:
            x[rng.random(len(x)) < 0.01] = np.nan
        r, pairs = cross_correlation(x, y, 5)
        for k in (-5, 0, 3):
            expected, count = naive(x, y, k)
            assert pairs[k + 5] == count
            assert r[k + 5] == pytest.approx(expected, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.01, 100), st.floats(-100, 100))
def test_scaling_shifting_and_swapping_change_what_they_should(seed: int, scale: float, shift: float) -> None:
    x, y = np.random.default_rng(seed).standard_normal((2, 300))
    plain = against(x, y).profiles[0]
    assert against(scale * x + shift, y).profiles[0].r == pytest.approx(plain.r, abs=1e-6)
    assert against(-x, y).profiles[0].r == pytest.approx(-plain.r, abs=1e-9)
    swapped = against(y, x).profiles[0]
    assert swapped.r == pytest.approx(plain.r[::-1], abs=1e-9)
    assert swapped.lags.tolist() == (-plain.lags[::-1]).tolist()


@pytest.mark.parametrize("lead", [-30, -1, 0, 7, 120])
@pytest.mark.parametrize("interval", [1, 10])
def test_a_lead_is_found_at_its_lag_with_its_sign(lead: int, interval: int) -> None:
    """Positive: the signal moves first. Both wander, and rise, as training series do."""
    rng = np.random.default_rng(5)
    news = rng.standard_normal(N + 300)
    cause, effect = (lfilter([1], [1, -0.9], c[150 : 150 + N]) for c in (news, np.roll(news, lead)))
    effect = effect + 0.5 * ar1(0.9, N, rng) + np.linspace(0, 30, N)
    found = against(cause + np.linspace(0, 50, N), effect, np.arange(N) * interval)
    best = found.rows[-1]
    assert (best.method, best.lag) == ("prewhitened", lead * interval)
    assert best.pearson_r > 0.5
    assert best.p_value_adjusted < 1e-6


def test_no_lag_reaches_across_a_rollback() -> None:
    axis = StepGrid.of(np.array([1, 2, 3, 4, 3, 4, 5, 2000, 2001]), lags=5)
    assert (np.diff(axis.cells)[[3, 6]] > 5).all()
    assert np.delete(np.diff(axis.cells), [3, 6]).tolist() == [1] * 6


def test_the_axis_has_the_logs_interval_and_keeps_its_holes() -> None:
    axis = StepGrid.of(np.array([1, 10, 20, 30, 60, 70, 80]), lags=50)
    assert axis.interval_steps == 10
    assert np.diff(axis.cells).tolist() == [1, 1, 1, 3, 1, 1]
    assert np.isnan(axis.spread(np.ones(7))).sum() == 2


def test_two_attempts_of_the_same_steps_are_both_counted() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 400))
    found = against(x, y, np.concatenate((np.arange(300), np.arange(200, 300))))
    assert found.rows[0].n == 400
    at_one = next(r for r in found.profiles[0].rows if r.lag == 1)
    assert at_one.n == 400 - 2 - 2  # each attempt loses its first change, and its last pair


# --- how far to trust it


def worth(x: Array, y: Array) -> float:
    both = np.isfinite(x) & np.isfinite(y)
    memory, _ = autocorrelation(np.where(both, y, np.nan), int(both.sum()) // 5)
    return n_effective(x, both, memory)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8, 0.95])
def test_the_effective_size_of_autocorrelated_pairs_is_theorys(phi: float) -> None:
    n = 20_000
    found = [worth(ar1(phi, n, rng), ar1(phi, n, rng)) for rng in map(np.random.default_rng, range(10))]
    assert float(np.median(found)) == pytest.approx(n * (1 - phi**2) / (1 + phi**2), rel=0.15)


@pytest.mark.parametrize("phi", [0.5, 0.95])
def test_holes_change_the_effective_size_by_what_they_take(phi: float) -> None:
    """Pairs farther apart are more independent: half of them are worth more than half of all, never more than all."""
    rng = np.random.default_rng(0)
    x, y = ar1(phi, 20_000, rng), ar1(phi, 20_000, rng)
    holed = np.where(rng.random(len(x)) < 0.5, np.nan, x)
    whole = worth(x, y)
    assert 0.5 * whole < worth(holed, y) < 1.15 * whole


def test_holm_is_as_its_paper_has_it() -> None:
    corrected = holm(np.array([0.01, math.nan, 0.04, 0.03, 0.005]))
    assert corrected == pytest.approx([0.03, math.nan, 0.06, 0.06, 0.02], nan_ok=True)
    assert holm(np.full(3, math.nan)) == pytest.approx([math.nan] * 3, nan_ok=True)


def test_an_autoregression_finds_its_coefficients() -> None:
    rng = np.random.default_rng(0)
    x = lfilter([1], [1, -0.6, 0.3], rng.standard_normal(20_000))
    assert autoregression(x)[:2] == pytest.approx([0.6, -0.3], abs=0.03)
    assert len(autoregression(np.full(100, 1.0))) == 0


INDEPENDENT: dict[str, Callable[[np.random.Generator], Array]] = {
    "white noise": lambda rng: rng.standard_normal(N),
    "AR(1), phi 0.95": lambda rng: ar1(0.95, N, rng),
    "random walks": lambda rng: np.cumsum(rng.standard_normal(N)),
    "straight trends": lambda rng: np.linspace(0, 20, N) + rng.standard_normal(N),
    "falling like a loss": lambda rng: 20 * np.exp(-np.arange(N) / 200) + rng.standard_normal(N),
    "noise that shrinks": lambda rng: rng.standard_normal(N) * np.exp(-3 * np.arange(N) / N),
    "Cauchy": lambda rng: rng.standard_cauchy(N),
}
PLAIN_FLAGS_AT_LEAST = {"AR(1), phi 0.95": 0.5, "random walks": 0.8, "straight trends": 1.0, "falling like a loss": 1.0}


@pytest.mark.parametrize("kind", INDEPENDENT)
def test_independent_series_are_called_related_no_more_often_than_said(kind: str) -> None:
    """Over 200 pairs, any of the 401 lags: 5 % and two and a half standard errors (4 %); the plain p flags most."""
    plain = lagged = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found = against(INDEPENDENT[kind](rng), INDEPENDENT[kind](rng))
        plain += found.rows[0].p_value < 0.05
        lagged += found_somewhere(found.profiles[0])
    assert lagged / 200 <= 0.09
    assert plain / 200 >= PLAIN_FLAGS_AT_LEAST.get(kind, 0.0)


def test_the_adjusted_plain_p_is_right_about_autocorrelated_series() -> None:
    flagged = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        flagged += against(ar1(0.95, N, rng), ar1(0.95, N, rng)).rows[0].p_value_adjusted < 0.05
    assert flagged / 200 <= 0.09


def test_one_coincidence_of_two_outliers_is_no_evidence() -> None:
    """Somewhere among 401 lags two lone spikes nearly always meet; plain, at that lag, they make the coefficient."""
    x, y = np.random.default_rng(0).standard_normal((2, N))
    x[500], y[537] = 1000.0, 1000.0
    r, _ = cross_correlation(x, y, 200)
    assert r[237] > 0.99
    assert not found_somewhere(against(x, y).profiles[0])


def test_lag_0_is_asked_beforehand_and_is_not_corrected_over_the_lags_that_are_searched() -> None:
    rng = np.random.default_rng(0)
    x, other, noise = rng.standard_normal((3, 160))
    columns = {"loss_ratio": 0.35 * x + noise, "adam_variance_l1": x, "adam_variance_max": other}
    found = correlations(columns, np.arange(160))
    at_zero = {row.signal: row for row in found.rows if row.method == "prewhitened" and row.lag == 0}
    asked = at_zero["adam_variance_l1"]
    (searched,) = (p for p in found.profiles if p.signal == "adam_variance_l1")
    assert asked.p_value_adjusted < 0.05 < searched.p_adjusted[len(searched.lags) // 2]
    assert asked.p_value_adjusted > 1.5 * asked.p_value, "the two signals are still a family"
