"""What was written into a job script yesterday is written today, and what was refused is refused."""

from __future__ import annotations

from tests.jobscript.written_scripts import RECORD


def test_a_script_is_read_and_changed_as_it_was_when_it_was_recorded() -> None:
    """A change on purpose is recorded anew (`python -m tests.jobscript.written_scripts`) and read in the difference."""
    assert RECORD.differences(RECORD.read()) == []
