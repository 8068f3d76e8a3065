"""The state's parts over all ranks: each layer's and each rank's own, in their order."""

from __future__ import annotations

import math

import pytest

from trainer_hooks.ranks.frame import SUMS, TOPS
from trainer_hooks.sample.state_parts import MOST_ENTRIES, Row, parts_of, rows_of_parts

LAYERS = 90  # three frames


def over_all(ranks: list[dict[str, float]]) -> dict[str, object]:
    """What rank 0 reads of these ranks, each with rank + n of the squares of layer n."""
    world = len(ranks)
    sent: list[list[Row]] = []
    for rank, read in enumerate(ranks):
        parts = tuple([times * (rank + n) for n in range(LAYERS)] for times in (1.0, 2.0, -3.0, 4.0))
        sent.append(rows_of_parts(read, parts, rank=rank, world=world))
    assert {len(rows) for rows in sent} == {len(sent[0])}
    rows: list[Row] = []
    for each in zip(*sent, strict=True):
        assert all(len(sums) <= SUMS and len(tops) <= TOPS for sums, tops in each)
        added = [sum(numbers) for numbers in zip(*(sums for sums, _ in each), strict=True)]
        largest = [max(numbers) for numbers in zip(*(tops for _, tops in each), strict=True)]
        rows.append((added, largest))
    return parts_of(rows, layers=LAYERS, world=world, with_moments=True)


def reading(rank: int) -> dict[str, float]:
    one = float(rank + 1)
    squares = {"momentum_squares": one**2, "parameter_squares": (2 * one) ** 2}
    return squares | {"variance_l1": one, "adam_step": 10 + rank, "state_layout": 5.0}


@pytest.mark.parametrize("world", [1, 2, 27, 512])
def test_each_rank_and_each_layer_has_its_own_place(world: int) -> None:
    found = over_all([reading(rank) for rank in range(world)])
    one = [float(rank + 1) for rank in range(world)]
    assert found["rank_variance_l1"] == tuple(one)
    assert found["rank_momentum_l2"] == tuple(one)
    assert found["rank_param_norm"] == tuple(2 * x for x in one)
    assert (found["adam_step"], found["adam_step_least"]) == (9 + world, 10)
    added = [sum(rank + n for rank in range(world)) for n in range(LAYERS)]
    assert found["layer_momentum_l2"] == tuple(math.sqrt(x) for x in added)
    assert found["layer_param_norm"] == tuple(math.sqrt(2 * x) for x in added)
    assert found["layer_momentum_projection"] == tuple(-3 * x for x in added)
    assert found["layer_param_projection"] == tuple(4 * x for x in added)
    assert found["state_layout"] == 5 * world


@pytest.mark.parametrize("pair", [(0, 1), (700, 701), (3, 1200)])
def test_an_exchange_of_two_of_very_many_ranks_shows(pair: tuple[int, int]) -> None:
    ranks = [reading(rank) for rank in range(1300)]
    was = over_all(ranks)["rank_variance_l1"]
    first, second = pair
    ranks[first], ranks[second] = ranks[second], ranks[first]
    now = over_all(ranks)["rank_variance_l1"]
    assert isinstance(was, tuple)
    assert len(was) <= MOST_ENTRIES
    assert now != was


def test_a_rank_without_a_state_counts_no_updates() -> None:
    found = over_all([{}, {}])
    assert not {"adam_step", "state_layout", "layer_param_projection"} & {*found}
    assert found["rank_variance_l1"] == (0.0, 0.0)
