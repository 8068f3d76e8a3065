"""The same run in the same state is dealt with as before: target, changes, actions, price, proof and refusals."""

from __future__ import annotations

import pytest

from tests.plan.planned_situations import SEEDS, recorded, said


@pytest.mark.parametrize("tens", range(SEEDS.stop // 10))
def test_what_is_planned_in_a_situation_is_what_was_planned_when_it_was_recorded(tens: int) -> None:
    """A change on purpose is recorded anew (`python -m tests.plan.planned_situations`) and read in the difference."""
    before = recorded()
    for seed in range(10 * tens, 10 * tens + 10):
        assert said(seed) == before[seed]


def test_every_situation_is_recorded() -> None:
    assert list(recorded()) == list(SEEDS)
