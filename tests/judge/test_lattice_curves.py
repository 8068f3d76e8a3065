"""What the judge says just at its edges is what it has said since it was recorded."""

from __future__ import annotations

import pytest

from tests.judge.lattice_curves import SEEDS, recorded, said

RECORDED = recorded()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_just_at_an_edge_is_judged_as_it_was_when_it_was_recorded(seed: int) -> None:
    assert said(seed) == RECORDED[seed]
