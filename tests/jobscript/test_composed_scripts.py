"""What is read from scripts of many pieces, and written into them, is what it was when bash had tried it."""

from __future__ import annotations

import pytest

from tests.jobscript.composed_scripts import SEEDS, recorded, said

RECORDED = recorded()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_script_of_many_pieces_is_read_and_changed_as_it_was_when_it_was_recorded(seed: int) -> None:
    assert said(seed) == RECORDED[seed]
