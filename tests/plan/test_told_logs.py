"""An incident log means tomorrow what it means today: where it stands, what is paged, marked and told of it."""

from __future__ import annotations

from tests.plan.told_logs import RECORD


def test_what_is_told_of_a_log_is_what_was_told_when_it_was_recorded() -> None:
    """A change on purpose is recorded anew (`python -m tests.plan.told_logs`) and read in the difference."""
    assert RECORD.differences(RECORD.read()) == []
