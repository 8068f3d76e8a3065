"""When a restart has recovered or failed, and why it has not yet, is what it was when it was recorded."""

from __future__ import annotations

from tests.judge.judged_restarts import RECORD


def test_a_restart_is_answered_as_it_was_when_it_was_recorded() -> None:
    """A change on purpose is recorded anew (`python -m tests.judge.judged_restarts`) and read in the difference."""
    assert RECORD.differences(RECORD.read()) == []
