"""The reduce gives what a sort in memory gives, whatever the runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainer_hooks.data.sorting import sort_values

DRAWS = st.sampled_from([2, 3, 10, 1000, 100000])


def sort(values: NDArray[np.generic], run_samples: int) -> dict[str, NDArray[np.generic]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "values.npy", values)
        distinct = sort_values(folder / "values.npy", folder, run_samples)
        found = {part: np.load(folder / f"{part}.npy") for part in ("samples", "distinct", "offsets")}
        assert distinct == len(found["distinct"])
        return found


@settings(deadline=None)
@given(st.integers(1, 400), DRAWS, st.integers(1, 60), st.integers(0, 99))
def test_runs_merge_to_the_whole_in_order(count: int, kinds: int, run_samples: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, kinds, count).astype(np.float32)
    found = sort(values, run_samples)
    assert np.array_equal(found["samples"], np.argsort(values, kind="stable"))
    distinct, counts = np.unique(values, return_counts=True)
    assert np.array_equal(found["distinct"], distinct)
    assert np.array_equal(np.diff(found["offsets"]), counts)


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_value_that_most_samples_have_is_merged_a_piece_at_a_time(share: float) -> None:
    draws = np.random.default_rng(0)
    values = np.where(draws.random(20_000) < share, 7, draws.integers(-50, 50, 20_000)).astype(np.int64)
    assert np.array_equal(sort(values, 300)["samples"], np.argsort(values, kind="stable"))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64])
def test_the_values_keep_their_type(dtype: type[np.generic]) -> None:
    assert sort(np.array([3, 1, 2, 1]).astype(dtype), 2)["distinct"].dtype == dtype
