"""What is read from job scripts of every kind and written into them, and what is refused, is what was recorded.

A change on purpose is recorded anew (`python -m tests.jobscript.written_scripts`, `composed_scripts`), and read in the
difference.
"""

from __future__ import annotations

import pytest

from tests.jobscript import composed_scripts, written_scripts
from tests.records import Record


@pytest.mark.parametrize("record", [composed_scripts.RECORD, written_scripts.RECORD], ids=["composed", "written"])
def test_a_script_is_read_and_changed_as_it_was_when_it_was_recorded(record: Record) -> None:
    assert record.differences(record.read()) == []
