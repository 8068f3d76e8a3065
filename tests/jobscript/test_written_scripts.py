"""What was written into a job script yesterday is written today, and what was refused is refused."""

from __future__ import annotations

import pytest

from tests.jobscript.written_scripts import CASES, recorded, said


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_read_and_changed_as_it_was_when_it_was_recorded(name: str) -> None:
    """A change on purpose is recorded anew (`python -m tests.jobscript.written_scripts`) and read in the difference."""
    assert said(name) == recorded()[name]


def test_no_script_is_recorded_that_is_not_read() -> None:
    assert list(recorded()) == list(CASES)
