"""random-LTD in real DeepSpeed engines: each ZeRO stage on two ranks, a pipeline, and DeepSpeed's own layers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hooks.torchrun import lines_of

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),  # several ranks start, on however few processors
]

FP32, BF16 = 3e-6, 1e-3
"""Relative, of a loss after a few steps: the order of sums; half precision."""


@pytest.fixture(scope="module")
def on_two() -> dict[str, dict[str, Any]]:
    return {case["case"]: case for case in lines_of("random_ltd_engines.py", ranks=2)}


@pytest.fixture(scope="module")
def on_one() -> dict[str, dict[str, Any]]:
    return {case["case"]: case for case in lines_of("random_ltd_engines.py", ranks=1)}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", range(4))
def test_two_ranks_at_any_stage_train_as_one_process_does_switched_on_and_off_in_the_middle(
    on_two: dict[str, dict[str, Any]], stage: int, precision: str
) -> None:
    case = on_two[f"ZeRO {stage}, {precision}"]
    ours, reference = case["losses"]
    assert len(ours) == 8
    assert ours == pytest.approx(reference, rel=FP32 if precision == "fp32" else BF16)
    assert case["seen"][0] == case["seen"][1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", range(4))
def test_a_resume_is_exact_whether_random_ltd_was_there_when_it_was_loaded_or_not(
    on_two: dict[str, dict[str, Any]], stage: int, precision: str
) -> None:
    case = on_two[f"ZeRO {stage}, {precision}"]
    for what in ("resumed", "resumed_with", "names"):
        ours, reference = case[what]
        assert len(ours) > 1
        assert ours == reference, what


@pytest.mark.parametrize("stage", [0, 3])
def test_an_engine_that_is_followed_needs_no_word_from_the_loop(on_two: dict[str, dict[str, Any]], stage: int) -> None:
    ours, reference = on_two[f"followed, ZeRO {stage}"]["losses"]
    assert ours == pytest.approx(reference, rel=FP32)


@pytest.mark.parametrize("checkpointed", [0, 1])
def test_the_stages_of_a_pipeline_drop_in_their_own_layers_what_one_process_would(
    on_two: dict[str, dict[str, Any]], checkpointed: int
) -> None:
    case = on_two[f"pipeline, checkpointed {checkpointed}"]
    assert case["stages"] == [[[1], [2]]] * 2
    ours, reference = case["losses"]
    assert ours == pytest.approx(reference, rel=FP32)
    without, _ = case["without"]
    assert without != pytest.approx(reference, rel=10 * FP32)


def test_converted_by_deepspeed_a_training_is_the_same_and_its_checkpoints_are_ordinary_ones(
    on_one: dict[str, dict[str, Any]],
) -> None:
    case = on_one["converted"]
    for what in ("losses", "resumed", "resumed_by_ours", "names", "names_after", "dropping"):
        ours, reference = case[what]
        assert len(ours) > 1
        assert ours == reference, what


def test_converted_by_deepspeed_a_padded_sample_keeps_its_mask(on_one: dict[str, dict[str, Any]]) -> None:
    ours, reference = on_one["padded"]["output"]
    assert ours == pytest.approx(reference, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("how", ["the loop says", "each layer counts"])
def test_deepspeeds_activation_checkpointing_recomputes_with_the_same_tokens(
    on_one: dict[str, dict[str, Any]], how: str
) -> None:
    ours, reference = on_one[f"recomputed, {how}"]["gradients"]
    assert any(ours)
    assert ours == reference
