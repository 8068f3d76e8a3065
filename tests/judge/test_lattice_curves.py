"""What the judge says just at its edges is what it has said since it was recorded."""

from __future__ import annotations

import pytest

from tests.judge.lattice_classes import classes
from tests.judge.lattice_curves import RECORD


@pytest.mark.parametrize("seed", RECORD.read())
def test_a_loss_just_at_an_edge_is_judged_as_it_was_when_it_was_recorded(seed: str) -> None:
    assert RECORD.differences([seed]) == []


def test_what_is_called_fits_what_was_drawn() -> None:
    """`python -m tests.judge.lattice_classes`: the wrong calls are two losses above a drawn outright_factor of 2 to 4,
    skipped updates, or the end of a dip that had lasted for the patience."""
    counts = classes()
    assert counts["spike", "right, not called"] >= 72
    assert counts["spike", "wrong, called"] <= 20
    assert counts["nothing above its course", "called"] <= 13
    assert sum(counts[what, "wrong, not called"] for what in ("step", "climb", "fall")) <= 2
