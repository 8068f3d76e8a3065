"""An overflow, a nan loss that was skipped and a nan that reached the weights are three different samples."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hooks.torchrun import lines_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # several ranks start, on however few processors


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    return {case["case"]: case for case in lines_of("kinds_of_nan.py", ranks=2)}


def test_nan_that_reached_the_weights_is_in_the_loss_and_in_adams_state(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["ZeRO 0, fp32, nan loss"]
    assert not case["weights_intact"]
    for sample in (case["sample"], case["after"]):
        assert not sample["skipped"]
        assert [sample[k] for k in ("loss", "grad_norm", "adam_variance_l1", "adam_variance_max")] == ["nan"] * 4


@pytest.mark.parametrize("zero", ["1", "3"])
def test_a_nan_loss_that_was_skipped_leaves_adams_state_as_it_was(zero: str, cases: dict[str, dict[str, Any]]) -> None:
    case = cases[f"ZeRO {zero}, fp16, nan loss"]
    assert case["weights_intact"]
    assert case["sample"]["skipped"]
    assert case["sample"]["loss"] == "nan"
    assert case["sample"]["loss_spread"] == "nan"
    assert case["sample"]["grad_norm"] == "inf"
    assert 0 < case["sample"]["adam_variance_l1"] < case["after"]["adam_variance_l1"] < 1
    assert not case["after"]["skipped"]


def test_an_overflow_has_a_loss_and_was_skipped(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["ZeRO 2, fp16, overflow"]
    assert case["weights_intact"]
    assert case["sample"]["skipped"]
    assert 0 < case["sample"]["loss"] < 10
    assert case["sample"]["loss_spread"] > 0
    assert case["sample"]["grad_norm"] == "inf"
    assert 0 < case["sample"]["adam_variance_l1"] < case["after"]["adam_variance_l1"] < 1
