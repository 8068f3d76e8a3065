"""What one rank holds of a layer may lie in several pieces."""

from __future__ import annotations

import math

import pytest
import torch

from trainer_hooks.sample.one_pass import Piece
from trainer_hooks.sample.reading import Measurement


@pytest.mark.parametrize("place", [0, 1])
def test_a_nan_in_one_piece_of_a_layer_is_the_layer_s_whichever_piece_comes_last(place: int) -> None:
    rows = torch.tensor([[2.0, 4.0, 8.0], [1.0, 9.0, 25.0]], dtype=torch.float64)  # sums of sqrt(v), maxima of v
    rows[:, place] = math.nan
    held = [Piece(exp_avg_sq=torch.zeros(4), layer=layer, share=0.5) for layer in ("h.0", "h.0", "h.1")]
    measured = Measurement(
        scalars={},
        rows=[rows],
        with_moments=False,
        with_state=True,
        pieces=held,
        shares=torch.full((3,), 0.5, dtype=torch.float64),
    )
    l1, nans, tops = measured.layer_rows(["h.0", "h.1", "h.2"])
    assert nans == [1.0, 0.0, 0.0]
    assert math.isnan(l1[0])
    assert l1[1:] == [4.0, 0.0]
    assert tops[1:] == [25.0, -math.inf]
