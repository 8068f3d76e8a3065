"""The hook's readings, in real DeepSpeed on real gloo ranks, against a float64 reference over the gathered state."""

from __future__ import annotations

import pytest

from tests.hooks.torchrun import lines_of


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_readings_equal_the_reference_on_every_sharding(ranks: int) -> None:
    cases = lines_of("matrix.py", ranks=ranks)
    assert len(cases) == 10
    for case in cases:
        for name, (ours, reference) in case["readings"].items():
            tolerance = 1e-5 if name == "grad_norm" else 1e-6
            assert ours == pytest.approx(reference, rel=tolerance), f"{case['case']}: {name}"
