"""When a restart has recovered or failed, and why it has not yet, is what it was when it was recorded."""

from __future__ import annotations

import pytest

from tests.judge.judged_restarts import SEEDS, recorded, said


@pytest.mark.parametrize("tens", range(SEEDS.stop // 10))
def test_a_restart_is_answered_as_it_was_when_it_was_recorded(tens: int) -> None:
    """A change on purpose is recorded anew (`python -m tests.judge.judged_restarts`) and read in the difference."""
    before = recorded()
    for seed in range(10 * tens, 10 * tens + 10):
        assert said(seed) == before[seed]
