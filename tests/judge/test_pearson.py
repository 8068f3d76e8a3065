"""The plain coefficient: what scipy says of the same pairs, to 1e-9."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from sentinel.judge.analysis.correlation.table import p_values, pearson

Columns = tuple[NDArray[np.float64], NDArray[np.float64]]


@st.composite
def columns(draw: st.DrawFn, least: int = 3) -> Columns:
    """Whole numbers scaled and moved far away, with ties, outliers and steps."""
    n = draw(st.integers(least, 60))
    whole = st.lists(st.integers(-1000, 1000) | st.sampled_from([-(10**6), 10**6]), min_size=n, max_size=n)
    scale = st.sampled_from([2.0**-20, 1.0, 2.0**10])
    offset = st.sampled_from([0.0, 1.0, -(2.0**20), 2.0**30])
    x, y = (np.array(draw(whole)) * (s := draw(scale)) + s * draw(offset) for _ in range(2))
    return x, y


def known(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    return len(x) >= 3 and bool(np.ptp(x) > 0 and np.ptp(y) > 0)


@settings(deadline=None)
@given(columns())
def test_it_is_what_scipy_says(given_columns: Columns) -> None:
    x, y = given_columns
    assume(known(x, y))
    expected, r = stats.pearsonr(x, y), pearson(x, y)
    assert r == pytest.approx(expected.statistic, abs=1e-9)
    assert float(p_values(r, len(x))) == pytest.approx(expected.pvalue, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_a_million_pairs_far_from_zero_lose_no_digits(offset: float) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(10**6)
    y = 0.3 * x + rng.standard_normal(10**6)
    x, y = x + offset, y - offset
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)


def test_too_few_or_constant_pairs_have_no_coefficient() -> None:
    for n in range(6):
        r = pearson(np.full(n, 1e9 + 0.1), np.arange(float(n)))
        assert math.isnan(r)
        assert math.isnan(float(p_values(r, n)))
    assert math.isnan(pearson(np.arange(2.0), np.arange(2.0)))


@pytest.mark.parametrize("r", [0.0, 0.01, -0.3, 0.999, 1.0])
@pytest.mark.parametrize("n", [3, 4, 30, 10**6])
def test_the_p_value_is_students(r: float, n: int) -> None:
    t = math.inf if r == 1 else r * math.sqrt((n - 2) / (1 - r * r))
    assert float(p_values(r, n)) == pytest.approx(2 * stats.t.sf(abs(t), n - 2), rel=1e-9)
