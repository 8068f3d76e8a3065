"""A recorded past says the same tomorrow: verdicts, onsets, levels and figures of curves of many kinds."""

from __future__ import annotations

import pytest

from tests.judge.judged_curves import RECORD


@pytest.mark.parametrize("name", RECORD.read())
def test_the_judge_says_of_a_curve_what_it_said_when_it_was_recorded(name: str) -> None:
    """A change on purpose is recorded anew with `python -m tests.judge.judged_curves`, and read in the difference."""
    assert RECORD.differences([name]) == []
