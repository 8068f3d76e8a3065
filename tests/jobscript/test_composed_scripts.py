"""What is read from scripts of many pieces, and written into them, is what it was when bash had tried it."""

from __future__ import annotations

from tests.jobscript.composed_scripts import RECORD


def test_a_script_of_many_pieces_is_read_and_changed_as_it_was_when_it_was_recorded() -> None:
    """A change on purpose is recorded anew (`python -m tests.jobscript.composed_scripts`)."""
    assert RECORD.differences(RECORD.read()) == []
