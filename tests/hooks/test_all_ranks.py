"""The hook's own reductions over ranks: exact, in one level or several, beside the training's own collectives."""

from __future__ import annotations

import pytest

from tests.hooks.torchrun import lines_of
from tests.tiers import full
from trainer_hooks.sample.gathering import AllRanks


@pytest.mark.parametrize("world", [2, *full([5])])
def test_sums_and_maxima_over_all_ranks_arrive_on_rank_0(world: int) -> None:
    cases = lines_of("ranks.py", ranks=world)
    assert [case["case"] for case in cases] == ["fan 64", "fan 2", "fan 3"]
    for case in cases:
        assert case["done"], case["case"]
        assert case["training"] == [world] * 3
        assert case["same names everywhere"]
        assert set(case["names"]) == {"embedding", *(f"block {i}" for i in range(world + 1))}
        assert len(case["names"]) == len(set(case["names"]))
        for step, (sums, tops) in enumerate(zip(case["sums"], case["tops"], strict=True)):
            assert float(sums[0]) == world
            assert float(sums[1]) == pytest.approx(sum(r / 3 for r in range(world)), rel=1e-15)
            assert sums[2] == ("nan" if step < world else "0.0")
            assert tops == [world - 1, 0]


def test_a_single_rank_needs_no_groups() -> None:
    reduction = AllRanks().start([1.5, 2.0], [3.0])
    assert reduction.poll()
    assert (reduction.sums.tolist(), reduction.tops.tolist()) == ([1.5, 2.0], [3.0])
