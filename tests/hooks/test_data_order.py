"""The order of the data: addressed by consumed_samples, and a reseed changes only what is still to come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.vocabulary.errors import DataError
from trainer_hooks.gpt.order import DataOrder


@given(
    st.integers(1, 200), st.integers(0, 99), st.integers(0, 500), st.lists(st.integers(1, 60), min_size=1, max_size=9)
)
def test_the_same_position_gives_the_same_samples_however_it_is_reached(
    samples: int, seed: int, position: int, counts: list[int]
) -> None:
    whole = DataOrder(samples, seed).indices(position, sum(counts))
    parts, at = [], position
    for count in counts:
        parts.append(DataOrder(samples, seed).indices(at, count))
        at += count
    assert np.array_equal(np.concatenate(parts), whole)


@given(
    st.integers(2, 100), st.integers(0, 9), st.lists(st.tuples(st.integers(0, 400), st.integers(10, 99)), max_size=4)
)
def test_every_epoch_shows_every_sample_once_whatever_was_reseeded(
    samples: int, seed: int, reseeds: list[tuple[int, int]]
) -> None:
    order = DataOrder(samples, seed)
    for position, new in sorted(reseeds):
        before = order.indices(0, position) if position else None
        order.reseed(position, new)
        assert before is None or np.array_equal(order.indices(0, position), before)
    for epoch in range(5):
        assert sorted(order.indices(epoch * samples, samples)) == list(range(samples))
    again = DataOrder(samples, 0, order.reseeds)
    assert np.array_equal(again.indices(0, 5 * samples), order.indices(0, 5 * samples))


def test_a_reseed_changes_what_is_to_come() -> None:
    order, other = DataOrder(1000, 0), DataOrder(1000, 0)
    order.reseed(300, 1)
    assert not np.array_equal(order.indices(300, 700), other.indices(300, 700))
    assert set(order.indices(300, 700)) == set(other.indices(300, 700))


def test_what_was_consumed_can_not_be_reseeded() -> None:
    order = DataOrder(1000, 0)
    order.reseed(300, 1)
    with pytest.raises(DataError, match="consumed"):
        order.reseed(200, 2)
