"""The share of the data at which a case is as good as the baseline on all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.data_efficiency import reached


@pytest.mark.parametrize(
    ("losses", "wanted", "share"),
    [
        ((3.0, 2.0), 2.0, 1.0),
        ((3.0, 2.0), 2.5, math.sqrt(0.5)),  # half-way between the losses is half-way between the logarithms
        ((3.0, 2.0), 3.0, 0.5),
        ((2.9, 2.0), 3.0, 0.5),  # less than half would do, and was not trained
        ((3.0, 2.0), 1.9, math.inf),
    ],
)
def test_the_share_at_equal_quality(losses: Sequence[float], wanted: float, share: float) -> None:
    assert reached((0.5, 1.0), np.array(losses), wanted) == pytest.approx(share)
