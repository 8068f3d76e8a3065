"""What is left of a long curve: real readings, and every extreme."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sentinel.reports.triage.curves import decimated

BUCKETS = 7
readings = st.one_of(
    st.floats(-1e9, 1e9), st.just(math.nan), st.just(math.inf), st.just(-math.inf), st.sampled_from([0.0, -0.0, 1e308])
)
curves = arrays(np.float64, st.integers(0, 200), elements=readings)


def buckets_of(values: np.ndarray) -> list[np.ndarray]:
    width = -(-len(values) // BUCKETS)
    return [np.arange(start, min(start + width, len(values))) for start in range(0, len(values), width)]


@given(curves)
def test_every_buckets_extremes_are_kept(values: np.ndarray) -> None:
    kept = values[decimated(values, BUCKETS)]
    for places in buckets_of(values) if len(values) else []:
        finite = values[places][np.isfinite(values[places])]
        inside = values[np.intersect1d(places, decimated(values, BUCKETS))]
        if len(finite):
            assert finite.min() in inside
            assert finite.max() in inside
    assert len(kept) <= len(values)


@given(curves)
def test_nan_and_both_infinities_are_kept_in_every_bucket_that_has_them(values: np.ndarray) -> None:
    kept = decimated(values, BUCKETS)
    for places in buckets_of(values) if len(values) else []:
        inside = values[np.intersect1d(places, kept)]
        for bad in (np.isnan, np.isposinf, np.isneginf):
            assert bad(inside).any() == bad(values[places]).any()
        nans = places[np.isnan(values[places])]
        assert np.isin([*nans[:1], *nans[-1:]], kept).all()


@given(curves, st.data())
def test_what_is_kept_is_in_order_once_and_holds_what_is_always_wanted(values: np.ndarray, data: st.DataObject) -> None:
    always = data.draw(arrays(np.bool_, len(values)))
    kept = decimated(values, BUCKETS, always)
    assert (np.diff(kept) > 0).all()
    assert always[kept].sum() == always.sum()
    if len(values):
        assert kept[0] == 0
        assert kept[-1] == len(values) - 1


def test_a_million_readings_become_a_few_thousand_and_the_only_peak_is_among_them() -> None:
    values = np.random.default_rng(0).normal(size=1_000_000)
    values[654_321] = 99.0
    kept = decimated(values, 4096)
    assert 654_321 in kept
    assert len(kept) <= 4 * 4096
