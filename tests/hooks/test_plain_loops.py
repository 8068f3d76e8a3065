"""The hook in plain PyTorch loops (plain_loops.py): each reading against what the optimizers hold."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.hooks.torchrun import lines_of

pytestmark = pytest.mark.full

SHARDED = ("ddp", "fsdp2")
EXACT = {"adam_variance_l1": 1e-7, "adam_variance_max": 1e-12, "param_norm": 1e-12, "loss": 1e-7, "grad_norm": 1e-6}
"""Largest relative error: v's roots, their sum by piece and the gradient's norms are taken in float32, whose unit
roundoff is 6e-8; the pieces are summed in float64."""


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    return {case["case"]: case for case in lines_of("plain_loops.py", ranks=1)}


@pytest.fixture(scope="module")
def by_two() -> dict[str, dict[str, Any]]:
    return {case["case"]: case for case in lines_of("plain_loops.py", *SHARDED, "tensor parallel", ranks=2)}


def check(case: dict[str, Any], *, without: tuple[str, ...] = ()) -> None:
    name = case["case"]
    assert (case["errors"], len(case["samples"])) == (0, len(case["wanted"])), name
    for sample, wanted in zip(case["samples"], case["wanted"], strict=True):
        left_out = without if not sample["skipped"] else (*without, "grad_norm")
        for reading in EXACT.keys() - set(left_out):
            assert sample[reading] == pytest.approx(wanted[reading], rel=EXACT[reading]), (name, reading)


def test_readings_equal_the_optimizers_state(alone: dict[str, dict[str, Any]]) -> None:
    assert len(alone) == 12
    for name, case in alone.items():
        check(case, without=("adam_variance_l1", "adam_variance_max", "param_norm") if "Muon" in name else ())


def test_each_parameter_counts_once_on_two_ranks(by_two: dict[str, dict[str, Any]]) -> None:
    assert len(by_two) == 3
    for case in by_two.values():
        check(case)
        assert {s["adam_variance_coverage"] for s in case["samples"]} == {1.0}


def test_training_is_the_same_to_the_bit_with_the_hook_and_without(
    alone: dict[str, dict[str, Any]], by_two: dict[str, dict[str, Any]]
) -> None:
    assert {name for cases in (alone, by_two) for name, case in cases.items() if not case["same"]} == set()


@pytest.mark.parametrize("name", ["GradScaler", "GradScaler, fused and foreach"])
def test_an_update_that_the_scaler_skips_is_a_skipped_step(alone: dict[str, dict[str, Any]], name: str) -> None:
    samples = alone[name]["samples"]
    assert [s["skipped"] for s in samples] == [False, False, True, False]
    assert [s["loss_scale"] for s in samples] == [w["loss_scale"] for w in alone[name]["wanted"]]
    assert not math.isfinite(samples[2]["grad_norm"])
    assert samples[2]["adam_variance_l1"] == samples[1]["adam_variance_l1"]


def test_what_has_no_v_is_said_to_have_none(alone: dict[str, dict[str, Any]]) -> None:
    matrices, whole = 4 * 2 * 12 * 12, 4 * 2 * 12 * 12 + 2 * (2 * 12 + 3 * 12) + 2 * 7 * 12
    for sample in alone["Muon beside AdamW"]["samples"]:
        assert sample["adam_variance_coverage"] == pytest.approx(1 - matrices / whole)
        assert (sample["adam_variance_l1"], sample["update_norm"]) == (None, None)


def test_ranks_gradients_are_compared_where_each_makes_its_own(by_two: dict[str, dict[str, Any]]) -> None:
    assert all(s["grad_norm_spread"] > 0 for s in by_two["ddp"]["samples"])
    assert {s["grad_norm_spread"] for name in ("fsdp2", "tensor parallel") for s in by_two[name]["samples"]} == {None}
