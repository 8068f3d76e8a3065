"""Pipeline, tensor and expert parallel training in real DeepSpeed on 4 gloo ranks: each parameter is counted once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hooks.torchrun import lines_of

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),  # several ranks start, on however few processors
]


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    return {case["case"]: case["readings"] for case in lines_of("model_parallel.py", ranks=4)}


def test_each_parameter_is_counted_once_however_the_model_is_cut_up(cases: dict[str, dict[str, Any]]) -> None:
    assert len(cases) == 11
    for name, readings in cases.items():
        assert readings.keys() >= {"loss", "adam_variance_l1", "adam_variance_max", "layers", "steps"}, name
        for reading, (ours, reference) in readings.items():
            assert ours == pytest.approx(reference, rel=1e-6), f"{name}: {reading}"


def test_the_norm_of_a_split_gradient_is_that_of_the_whole(cases: dict[str, dict[str, Any]]) -> None:
    ours, reference = cases["tensor parallel, ZeRO 0, fp32"]["grad_norm"]
    assert ours == pytest.approx(reference, rel=1e-6)
