"""The order of the data: addressed by consumed_samples, and a reseed changes only what is still to come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.vocabulary.errors import DataError
from sentinel.vocabulary.training_settings import SkippedRange
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


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_reseed_at_an_epochs_start_orders_that_epoch_and_all_later_ones(epoch: int) -> None:
    order, at = DataOrder(50, 0), 50 * epoch
    order.reseed(at, 1)
    order.reseed(at, 2)  # of two at the same place the later one holds
    assert np.array_equal(order.indices(0, at), DataOrder(50, 0).indices(0, at))
    assert np.array_equal(order.indices(at, 100), DataOrder(50, 2).indices(at, 100))
    assert not np.array_equal(order.indices(at, 50), DataOrder(50, 0).indices(at, 50))
    assert order.reseeds == (*[(0, 0)][: epoch > 0], (at, 2))


def test_what_was_consumed_can_not_be_reseeded() -> None:
    order = DataOrder(1000, 0)
    order.reseed(300, 1)
    with pytest.raises(DataError, match="consumed"):
        order.reseed(200, 2)


def walk(order: DataOrder, position: int, counts: list[int]) -> list[int]:
    """The samples of that many steps, each beginning where the last one ended."""
    seen: list[int] = []
    for count in counts:
        samples, position = order.take(position, count)
        seen += samples.tolist()
    return seen


@given(
    st.integers(2, 60),
    st.integers(0, 9),
    st.integers(0, 150),
    st.integers(1, 150),
    st.lists(st.integers(1, 20), min_size=1),
)
def test_a_run_that_skips_is_the_run_whose_data_does_not_hold_it(
    samples: int, seed: int, position: int, count: int, counts: list[int]
) -> None:
    skipping, whole = DataOrder(samples, seed), DataOrder(samples, seed)
    skipping.skip(position, count)
    assert walk(skipping, position, counts) == walk(whole, position + count, counts)
    assert skipping.first(position) == position + count
    assert skipping.skipped_samples == count
    if position:
        assert np.array_equal(skipping.indices(0, position), whole.indices(0, position))


@given(
    st.integers(2, 60),
    st.integers(0, 9),
    st.integers(0, 150),
    st.integers(1, 60),
    st.lists(st.integers(1, 20), min_size=1),
)
def test_a_resume_within_or_past_the_range_sees_what_the_run_without_a_requeue_sees(
    samples: int, seed: int, position: int, count: int, counts: list[int]
) -> None:
    order = DataOrder(samples, seed)
    order.skip(position, count)
    whole = walk(order, position, counts)
    seen, at = [], position
    for wanted in counts:  # a requeue after every step: the ledger and the position are all that the checkpoint holds
        ledger = [SkippedRange.from_json(r.to_json()) for r in order.skipped]
        taken, at = DataOrder(samples, 0, order.reseeds, ledger).take(at, wanted)
        seen += taken.tolist()
    assert seen == whole


@given(st.integers(20, 60), st.integers(0, 9), st.integers(0, 18), st.integers(1, 19))
def test_a_reseed_at_the_same_place_permutes_only_what_is_left(
    samples: int, seed: int, position: int, count: int
) -> None:
    count = min(count, samples - position - 1)
    left_out = set(DataOrder(samples, seed).indices(position, count).tolist())
    order = DataOrder(samples, seed)
    order.skip(position, count)
    order.reseed(order.first(position), seed + 1)
    rest = samples - position - count
    seen = order.indices(position, rest).tolist()
    assert sorted(seen) == sorted(DataOrder(samples, seed).indices(position + count, rest).tolist())
    assert not left_out & set(seen)
    assert order.first(position) == position + count


@given(st.integers(30, 60), st.integers(0, 9), st.integers(5, 12), st.integers(13, 20), st.integers(1, 8))
def test_a_rollback_to_before_the_range_and_a_new_order_still_leave_out_the_same_samples(
    samples: int, seed: int, rolled_back_to: int, position: int, count: int
) -> None:
    order = DataOrder(samples, seed)
    order.reseed(rolled_back_to + 1, seed + 1)
    order.skip(position, count)
    left_out = set(DataOrder(samples, 0, order.reseeds).indices(position, count).tolist())
    again = DataOrder(samples, seed, ((0, seed),), order.skipped)  # the checkpoint from before knows one seed only
    again.reseed(rolled_back_to, seed + 2)
    first_epoch = again.indices(0, samples - count).tolist()
    assert sorted(first_epoch) == sorted(set(range(samples)) - left_out)
    assert sorted(again.indices(samples, samples)) == list(range(samples))  # another epoch is not concerned
    assert again.skipped_samples == count


def test_two_ranges_that_overlap_count_each_sample_once() -> None:
    order = DataOrder(100, 0)
    order.skip(10, 10)
    order.skip(15, 10)
    assert order.skipped_samples == 15
    assert order.first(10) == 25
