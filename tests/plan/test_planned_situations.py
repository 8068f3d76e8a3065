"""The same run in the same state is dealt with as before: target, changes, actions, price, proof and refusals."""

from __future__ import annotations

from tests.plan.planned_situations import RECORD


def test_what_is_planned_in_a_situation_is_what_was_planned_when_it_was_recorded() -> None:
    """A change on purpose is recorded anew (`python -m tests.plan.planned_situations`) and read in the difference."""
    assert RECORD.differences(RECORD.read()) == []
