"""An incident log means tomorrow what it means today: where it stands, what is paged, marked and told of it."""

from __future__ import annotations

import pytest

from tests.plan.told_logs import SEEDS, recorded, said


@pytest.mark.parametrize("tens", range(SEEDS.stop // 10))
def test_what_is_told_of_a_log_is_what_was_told_when_it_was_recorded(tens: int) -> None:
    """A change on purpose is recorded anew (`python -m tests.plan.told_logs`) and read in the difference."""
    before = recorded()
    for seed in range(10 * tens, 10 * tens + 10):
        assert said(seed) == before[seed]
