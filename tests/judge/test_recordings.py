"""What the judge says of chosen curves and restarts, also just at its edges, is what it has said since it was recorded.

A change on purpose is recorded anew (`python -m tests.judge.judged_curves`, `lattice_curves`, `judged_restarts`), and
read in the difference.
"""

from __future__ import annotations

import pytest

from tests.judge import judged_curves, judged_restarts, lattice_curves
from tests.judge.lattice_classes import classes


@pytest.mark.parametrize("name", judged_curves.RECORD.read())
def test_the_judge_says_of_a_curve_what_it_said_when_it_was_recorded(name: str) -> None:
    """Verdicts, onsets, levels and figures of curves of many kinds."""
    assert judged_curves.RECORD.differences([name]) == []


@pytest.mark.parametrize("seed", lattice_curves.RECORD.read())
def test_a_loss_just_at_an_edge_is_judged_as_it_was_when_it_was_recorded(seed: str) -> None:
    assert lattice_curves.RECORD.differences([seed]) == []


def test_a_restart_is_answered_as_it_was_when_it_was_recorded() -> None:
    """When it has recovered or failed, and why it has not yet."""
    assert judged_restarts.RECORD.differences(judged_restarts.RECORD.read()) == []


def test_what_is_called_fits_what_was_drawn() -> None:
    """`python -m tests.judge.lattice_classes`: the wrong calls are two losses above a drawn outright_factor of 2 to 4,
    skipped updates, or the end of a dip that had lasted for the patience."""
    counts = classes()
    assert counts["spike", "right, not called"] >= 72
    assert counts["spike", "wrong, called"] <= 20
    assert counts["nothing above its course", "called"] <= 13
    assert sum(counts[what, "wrong, not called"] for what in ("step", "climb", "fall")) <= 2
