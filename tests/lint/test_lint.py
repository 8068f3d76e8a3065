"""What lint says of a run: each rule just inside and just outside, what was published, and what tr8 really ran."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.jobscript.derived import (
    ParameterCount,
    curriculum_schedule,
    parameter_count,
    steps_of,
    total_steps,
    warmup_steps,
)
from sentinel.jobscript.facts import BatchRamp, DeepSpeedJson, ScriptFacts
from sentinel.lint import RESTART_RULES, RULES, LintFinding, lint, lint_before_restart
from sentinel.lint.finding import source_of
from tests.jobscript.published_runs import PUBLISHED, SLW, TR8, TR8B
from tests.support.there import there

PAGE = Path(__file__).parents[2] / "docs" / "LINT_RULES.md"


def said(facts: ScriptFacts, what: str) -> list[LintFinding]:
    return [finding for finding in lint(facts) if finding.what == what]


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_published_run_has_an_error(name: str) -> None:
    assert [finding for finding in lint(PUBLISHED[name]) if finding.severity == "error"] == []


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("LLaMA")])
def test_gated_models_get_notes_at_most(name: str) -> None:
    assert {finding.severity for finding in lint(PUBLISHED[name])} <= {"note"}


def test_what_tr8_began_with_is_caught_and_said_with_its_numbers() -> None:
    errors = {finding.what: finding.sentence for finding in lint(TR8) if finding.severity == "error"}
    assert set(errors) == {"ffn_size", "parameters_as_declared"}
    assert errors["ffn_size"].startswith("ffn_hidden_size 20480 is 1.25 x hidden_size 16384, and 4 x 5120: ")
    assert "it should be 65536" in errors["ffn_size"]
    assert "55.9B to 60.2B" in errors["parameters_as_declared"]
    assert "104B" in errors["parameters_as_declared"]
    assert {finding.what for finding in lint(TR8) if finding.severity == "warning"} == {
        *["width_depth_ratio", "initial_weights", "embedding_layernorm", "beta2", "work_at_stake"]
    }


def test_the_corrected_shapes_of_tr8_have_no_error() -> None:
    experiment_6 = replace(
        TR8,
        ffn_hidden_size=None,
        pipeline_model_parallel_size=32,
        world_size=512,
        rampup_batch_size=BatchRamp(start=32, increment=32, samples=6_000_000),
        adam_beta2=0.95,
        save_interval=300,
    )
    experiment_7 = replace(experiment_6, hidden_size=11600, num_layers=64, num_attention_heads=40)
    for facts in (experiment_6, experiment_7, TR8B):
        assert "error" not in {finding.severity for finding in lint(facts)}
    assert not said(experiment_7, "width_depth_ratio")
    assert {finding.what for finding in lint(TR8B) if finding.severity == "warning"} == {"head_size"}


def test_tr1_s_64_nodes_failed_until_its_batch_had_grown() -> None:
    """Its chronicle, round 3: increments of 16 allow 16 replicas, 32 nodes; 64 once the batch had come to 1024."""
    nodes_64 = replace(PUBLISHED["tr1-13B"], world_size=256)
    assert {finding.severity for finding in said(nodes_64, "batch_ramp_divides")} == {"error"}
    assert not said(replace(nodes_64, consumed_samples=5_000_000), "batch_ramp_divides")


def test_steps_are_those_that_the_logs_of_the_runs_count() -> None:
    """`iteration 7000/ 159576` of tr8, `31214/ 115311` of tr11; tr8's LR reached its peak at iteration 6503."""
    assert total_steps(TR8) == pytest.approx(159_576, rel=1e-4)
    assert total_steps(PUBLISHED["tr11-176B"]) == pytest.approx(115_311, rel=1e-3)
    assert warmup_steps(TR8) == pytest.approx(6503, rel=0.002)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("GPT-3 125M", 0.125), ("GPT-3 175B", 174.6), ("tr11-176B", 176.2), ("LLaMA 65B", 65.3), ("LLaMA 2 70B", 69.0)],
)
def test_parameters_come_out_as_published(name: str, billions: float) -> None:
    count = there(parameter_count(PUBLISHED[name]))
    assert count.least == count.most == pytest.approx(billions * 1e9, rel=0.005)


def test_parameters_come_out_to_the_last_one() -> None:
    """As the released weights of GPT-2 XL and LLaMA 7B have them."""
    gpt2 = ScriptFacts(num_layers=48, hidden_size=1600, num_attention_heads=25, seq_length=1024, vocab_size=50257)
    assert parameter_count(gpt2) == ParameterCount(1_557_611_200, 1_557_611_200)
    assert parameter_count(PUBLISHED["LLaMA 7B"]) == ParameterCount(6_738_415_616, 6_738_415_616)
    assert parameter_count(ScriptFacts(num_layers=1, hidden_size=8, num_experts=2)) is None
    unsaid = replace(PUBLISHED["LLaMA 7B"], ffn_hidden_size=None)
    assert parameter_count(unsaid) == parameter_count(replace(unsaid, ffn_hidden_size=8 * 4096 / 3))


BIG = {"declared_parameters": 100e9}
LITTLE = {"declared_parameters": 125e6}
WIDE = {"num_layers": 100, "num_attention_heads": 100, **BIG}
STAGES = {"pipeline_model_parallel_size": 8, "tensor_model_parallel_size": 1}
RANKS = {"world_size": 64, **STAGES, "micro_batch_size": 2}  # 8 replicas
STEPS = {"global_batch_size": 100, "seq_length": 1000}


def ramp(start: int, increment: int, samples: int = 1000) -> dict[str, Any]:
    return {"rampup_batch_size": BatchRamp(start=start, increment=increment, samples=samples)}


def slw(**more: Any) -> dict[str, Any]:
    return {"curriculum": replace(SLW, **more)}


def slw_json(**more: Any) -> dict[str, Any]:
    return {"deepspeed": DeepSpeedJson(**more)}


def discrete(difficulties: tuple[int, ...], max_steps: tuple[int, ...]) -> dict[str, Any]:
    return slw(schedule="fixed_discrete", difficulties=difficulties, max_steps=max_steps, total_steps=None)


YOUNG = {"step_time_s": 100.0, "node_failures_per_day": 1.0, "save_time_s": 432.0}  # sqrt(2 x 432 s x 1 day) = 8640 s
ENDS = {**slw(total_steps=100), "seq_length": 2048, "global_batch_size": 10, "train_tokens": 3_104_000}
"""100 steps from 64 to 2048 tokens see 1056000 of them, and another 100 the rest: 200 steps."""
TEN = {"num_layers": 10, "hidden_size": 1000}

CASES: list[tuple[str, dict[str, Any], str | None]] = [
    ("ffn_size", {"hidden_size": 1024, "ffn_hidden_size": 4096, "gated_ffn": False}, None),
    ("ffn_size", {"hidden_size": 1024, "ffn_hidden_size": 4095, "gated_ffn": False}, "warning"),
    ("ffn_size", {"hidden_size": 1024, "ffn_hidden_size": 2731, "gated_ffn": False}, "warning"),
    ("ffn_size", {"hidden_size": 1024, "ffn_hidden_size": 2730, "gated_ffn": False}, "error"),
    ("ffn_size", {"hidden_size": 1024, "ffn_hidden_size": 6143, "gated_ffn": False}, "warning"),
    ("ffn_size", {"hidden_size": 1024, "ffn_hidden_size": 6144, "gated_ffn": False}, "error"),
    ("ffn_size", {"hidden_size": 1024, "ffn_hidden_size": 2730}, "warning"),
    ("ffn_size", {"hidden_size": 1024, "ffn_hidden_size": 1280}, "error"),
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 2600, "gated_ffn": True}, None),
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 2599, "gated_ffn": True}, "note"),
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 3600, "gated_ffn": True}, None),
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 3601, "gated_ffn": True}, "note"),
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 5334, "gated_ffn": True}, "warning"),
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 1333, "gated_ffn": True}, "warning"),
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 1334, "gated_ffn": True}, "note"),
    ("parameters_as_declared", {**TEN, "vocab_size": 1, **LITTLE}, None),
    ("parameters_as_declared", {**TEN, "vocab_size": 1, "declared_parameters": 133e6}, "warning"),
    ("parameters_as_declared", {**TEN, "vocab_size": 1, "declared_parameters": 151e6}, "error"),
    ("parameters_as_declared", {**TEN, "vocab_size": 1, "declared_parameters": 96e6}, "error"),
    ("parameters_as_declared", {**TEN, "declared_parameters": 375e6}, None),
    ("parameters_as_declared", {**TEN, "declared_parameters": 480e6}, "error"),
    ("width_depth_ratio", {"hidden_size": 20_000, **WIDE}, None),
    ("width_depth_ratio", {"hidden_size": 21_000, **WIDE}, None),
    ("width_depth_ratio", {"hidden_size": 21_100, **WIDE}, "note"),
    ("width_depth_ratio", {"hidden_size": 30_000, **WIDE}, "note"),
    ("width_depth_ratio", {"hidden_size": 30_100, **WIDE}, "warning"),
    ("width_depth_ratio", {"hidden_size": 10_000, **WIDE}, None),
    ("width_depth_ratio", {"hidden_size": 9_900, **WIDE}, "note"),
    ("width_depth_ratio", {"hidden_size": 7_500, **WIDE}, "note"),
    ("width_depth_ratio", {"hidden_size": 7_400, **WIDE}, "warning"),
    ("width_depth_ratio", {"hidden_size": 64, "num_layers": 4, **LITTLE}, None),
    ("width_depth_ratio", {"hidden_size": 1204, "num_layers": 4, **LITTLE}, "warning"),
    ("heads_divide_hidden", {"hidden_size": 11600, "num_attention_heads": 40}, None),
    ("heads_divide_hidden", {"hidden_size": 11600, "num_attention_heads": 32}, "error"),
    ("heads_divide_hidden", {"hidden_size": 11600, "num_attention_heads": 32, "kv_channels": 128}, None),
    ("heads_divide_hidden", {"num_attention_heads": 32, "num_query_groups": 8}, None),
    ("heads_divide_hidden", {"num_attention_heads": 32, "num_query_groups": 5}, "error"),
    ("head_size", {"hidden_size": 11520, "num_attention_heads": 80}, None),
    ("head_size", {"hidden_size": 11600, "num_attention_heads": 80}, "warning"),
    ("head_size", {"num_attention_heads": 80, "kv_channels": 128}, None),
    ("head_size", {"num_attention_heads": 80, "kv_channels": 100}, "warning"),
    ("padded_vocabulary", {"padded_vocab_size": 250_880, "tensor_model_parallel_size": 4}, None),
    ("padded_vocabulary", {"padded_vocab_size": 250_752, "tensor_model_parallel_size": 4}, "warning"),
    ("padded_vocabulary", {"padded_vocab_size": 250_753, "tensor_model_parallel_size": 4}, "error"),
    ("padded_vocabulary", {"padded_vocab_size": 50257}, "warning"),
    ("padded_vocabulary", {"vocab_size": 50257, "make_vocab_size_divisible_by": 128}, None),
    ("padded_vocabulary", {"vocab_size": 50100, "make_vocab_size_divisible_by": 64}, "warning"),
    ("enough_positions", {"seq_length": 2048, "max_position_embeddings": 2048}, None),
    ("enough_positions", {"seq_length": 2049, "max_position_embeddings": 2048}, "error"),
    ("initial_weights", {"hidden_size": 4000, "init_method_std": 0.0199, **BIG}, None),
    ("initial_weights", {"hidden_size": 4000, "init_method_std": 0.0201, **BIG}, "note"),
    ("initial_weights", {"hidden_size": 4000, "init_method_std": 0.0299, **BIG}, "note"),
    ("initial_weights", {"hidden_size": 4000, "init_method_std": 0.0301, **BIG}, "warning"),
    ("initial_weights", {"hidden_size": 4000, "init_method_std": 0.0301, **LITTLE}, None),
    ("embedding_layernorm", {"embed_layernorm": False, "precision": "fp16", **BIG}, "warning"),
    ("embedding_layernorm", {"embed_layernorm": True, "precision": "fp16", **BIG}, None),
    ("embedding_layernorm", {"precision": "fp16", **BIG}, None),
    ("embedding_layernorm", {"embed_layernorm": False, "precision": "bf16", **BIG}, None),
    ("embedding_layernorm", {"embed_layernorm": False, "precision": "fp16", "declared_parameters": 99e9}, None),
    ("ranks_divide_into_replicas", {"world_size": 64, **STAGES}, None),
    ("ranks_divide_into_replicas", {"world_size": 63, **STAGES}, "error"),
    ("ranks_divide_into_replicas", {"world_size": 4, **STAGES}, "error"),
    ("ranks_divide_into_replicas", {"world_size": 64, **STAGES, "context_parallel_size": 3}, "error"),
    ("tensor_parallel_in_a_node", {"tensor_model_parallel_size": 4, "gpus_per_node": 4}, None),
    ("tensor_parallel_in_a_node", {"tensor_model_parallel_size": 8, "gpus_per_node": 4}, "warning"),
    ("tensor_parallel_divides", {"tensor_model_parallel_size": 8, "num_attention_heads": 32}, None),
    ("tensor_parallel_divides", {"tensor_model_parallel_size": 8, "num_attention_heads": 25}, "error"),
    ("tensor_parallel_divides", {"tensor_model_parallel_size": 8, "ffn_hidden_size": 11004}, "error"),
    ("layers_and_stages", {"num_layers": 64, **STAGES}, None),
    ("layers_and_stages", {"num_layers": 63, **STAGES}, "error"),
    ("layers_and_stages", {"num_layers": 7, **STAGES, "pp_partition_method": "type:transformer"}, "error"),
    ("layers_and_stages", {"num_layers": 63, **STAGES, "pp_partition_method": "type:transformer"}, "warning"),
    ("layers_and_stages", {"num_layers": 62, **STAGES, "pp_partition_method": "type:transformer|embedding"}, None),
    ("layers_and_stages", {"num_layers": 63, "pipeline_model_parallel_size": 1}, None),
    ("batch_divides", {"global_batch_size": 1024, **RANKS}, None),
    ("batch_divides", {"global_batch_size": 1032, **RANKS}, "error"),
    ("batch_divides", {"global_batch_size": 1025, "micro_batch_size": 2}, "error"),
    ("batch_ramp_divides", {"global_batch_size": 1024, **RANKS, **ramp(16, 16)}, None),
    ("batch_ramp_divides", {"global_batch_size": 1024, **RANKS, **ramp(8, 8)}, "error"),
    ("batch_ramp_divides", {"global_batch_size": 1024, **RANKS, **ramp(16, 8)}, "error"),
    ("batch_ramp_divides", {"global_batch_size": 1024, **ramp(16, 15)}, "error"),
    ("batch_ramp_divides", {"global_batch_size": 1024, **RANKS, **ramp(8, 8), "consumed_samples": 999}, "error"),
    ("batch_ramp_divides", {"global_batch_size": 1024, **RANKS, **ramp(8, 8), "consumed_samples": 1000}, None),
    ("batch_ramp_divides", {"global_batch_size": 40, **RANKS, **ramp(8, 16), "consumed_samples": 499}, "error"),
    ("batch_ramp_divides", {"global_batch_size": 1024, **ramp(2048, 16)}, "error"),
    ("batch_ramp_ends", {"train_samples": 5000, **ramp(16, 16)}, None),
    ("batch_ramp_ends", {"train_samples": 4999, **ramp(16, 16)}, "note"),
    ("batch_ramp_ends", {"train_samples": 1001, **ramp(16, 16)}, "note"),
    ("batch_ramp_ends", {"train_samples": 1000, **ramp(16, 16)}, "error"),
    ("batch_ramp_ends", {"train_iters": 1000, **ramp(16, 16)}, "error"),
    ("pipeline_bubble", {"global_batch_size": 8 * 2 * 21, **RANKS}, None),
    ("pipeline_bubble", {"global_batch_size": 8 * 2 * 20, **RANKS}, "note"),
    ("zero_and_pipeline", {**STAGES, **slw_json(zero_stage=1)}, None),
    ("zero_and_pipeline", {**STAGES, **slw_json(zero_stage=2)}, "error"),
    ("zero_and_pipeline", {"pipeline_model_parallel_size": 1, **slw_json(zero_stage=3)}, None),
    ("deepspeed_agrees", {"global_batch_size": 64, **slw_json(train_batch_size=64)}, None),
    ("deepspeed_agrees", {"global_batch_size": 64, **slw_json(train_batch_size=63)}, "error"),
    ("deepspeed_agrees", {"micro_batch_size": 2, **slw_json(micro_batch_size=1)}, "error"),
    ("deepspeed_agrees", {"precision": "bf16", **slw_json(fp16=True)}, "error"),
    ("deepspeed_agrees", {"precision": "fp16", **slw_json(fp16=True, bf16=False)}, None),
    ("deepspeed_agrees", {"precision": "fp16", **slw_json(fp16=False)}, "error"),
    ("deepspeed_agrees", {"clip_grad": 1.0, **slw_json(gradient_clipping=0.5)}, "warning"),
    ("one_unit", {"train_iters": 10, "lr_warmup_iters": 1, "lr_decay_iters": 10}, None),
    ("one_unit", {"train_iters": 10, "train_samples": 100}, "error"),
    ("one_unit", {"train_iters": 10, "lr_warmup_samples": 100}, "error"),
    ("one_unit", {"train_samples": 10, "lr_decay_iters": 100}, "error"),
    ("one_unit", {"train_samples": 10, "lr_decay_tokens": 100}, None),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_iters": 100}, None),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_iters": 101}, "note"),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_iters": 200}, "note"),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_iters": 201}, "warning"),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_iters": 999}, "warning"),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_iters": 1000}, "error"),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_fraction": 0.1}, None),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_fraction": 0.11}, "note"),
    ("warmup_against_total", {**STEPS, "train_tokens": 100_000_000, "lr_warmup_iters": 100}, None),
    ("warmup_against_total", {**STEPS, "train_tokens": 99_000_000, "lr_warmup_iters": 100}, "note"),
    ("warmup_for_adam", {"train_iters": 10**5, "lr_warmup_iters": 2000, "adam_beta2": 0.999}, None),
    ("warmup_for_adam", {"train_iters": 10**5, "lr_warmup_iters": 1999, "adam_beta2": 0.999}, "warning"),
    ("warmup_for_adam", {"train_iters": 10**5, "lr_warmup_iters": 40, "adam_beta2": 0.95}, None),
    ("warmup_for_adam", {"train_iters": 10**5, "lr_warmup_iters": 39, "adam_beta2": 0.95}, "warning"),
    ("warmup_for_adam", {"train_iters": 10**5, "lr_warmup_iters": 0}, "warning"),
    ("decay_against_total", {"train_samples": 1000, "lr_decay_samples": 1250}, None),
    ("decay_against_total", {"train_samples": 1000, "lr_decay_samples": 1251}, "warning"),
    ("decay_against_total", {"train_tokens": 1000, "lr_decay_tokens": 500}, None),
    ("decay_against_total", {"train_iters": 1000, "lr_decay_iters": 499}, "note"),
    ("lr_bounds", {"lr": 1e-4, "min_lr": 1e-4}, None),
    ("lr_bounds", {"lr": 1e-4, "min_lr": 1.1e-4}, "error"),
    ("lr_for_size", {"lr": 1.8e-4, "declared_parameters": 175e9}, None),
    ("lr_for_size", {"lr": 1.81e-4, "declared_parameters": 175e9}, "warning"),
    ("lr_for_size", {"lr": 1.81e-4, "declared_parameters": 13e9}, None),
    ("lr_for_size", {"lr": 3.01e-4, "declared_parameters": 13e9}, "warning"),
    ("lr_for_size", {"lr": 1.79e-3, **LITTLE}, None),
    ("lr_for_size", {"lr": 1.81e-3, **LITTLE}, "warning"),
    ("lr_for_size", {"lr": 1.5e-2, "declared_parameters": 0.2e6}, "note"),
    ("lr_for_size", {"lr": 1.81e-4, "declared_parameters": 1e12}, "warning"),
    ("slw_without_batch_ramp", slw(), None),
    ("slw_without_batch_ramp", {**slw(), **ramp(16, 16)}, "error"),
    ("slw_ends_by_tokens", {**slw(), "train_samples": 1000}, "warning"),
    ("slw_ends_by_tokens", {**slw(), "train_tokens": 1000}, None),
    ("slw_ends_by_tokens", {"train_samples": 1000}, None),
    ("slw_ends_by_tokens", {**ENDS, "train_samples": 1998}, None),
    ("slw_ends_by_tokens", {**ENDS, "train_samples": 1996}, "error"),
    ("slw_ends_by_tokens", {**ENDS, "train_iters": 199}, "error"),
    ("slw_decays_by_tokens", {**slw(), "lr_decay_tokens": 1000}, None),
    ("slw_decays_by_tokens", {**slw(), "lr_decay_samples": 1000}, "warning"),
    ("slw_decays_by_tokens", {"lr_decay_samples": 1000}, None),
    ("slw_warms_up_by_samples", {**slw(), "lr_warmup_tokens": 1000}, "warning"),
    ("slw_warms_up_by_samples", {**slw(), "lr_warmup_samples": 1_464_844, "global_batch_size": 2048, **BIG}, None),
    ("slw_warms_up_by_samples", {**slw(), "lr_warmup_samples": 1_464_843, "global_batch_size": 2048, **BIG}, "warning"),
    ("slw_warms_up_by_samples", {**slw(), "lr_warmup_samples": 216_320, "global_batch_size": 2048, **LITTLE}, None),
    ("slw_duration", {**slw(total_steps=999), "train_iters": 1000}, None),
    ("slw_duration", {**slw(total_steps=1000), "train_iters": 1000}, "error"),
    ("slw_duration", {**slw(total_steps=200), "lr_warmup_iters": 100}, None),
    ("slw_duration", {**slw(total_steps=199), "lr_warmup_iters": 100}, "note"),
    ("slw_duration", {**slw(total_steps=100), "lr_warmup_iters": 100}, "note"),
    ("slw_duration", {**slw(total_steps=99), "lr_warmup_iters": 100}, "warning"),
    ("slw_duration", slw(total_steps=None), "error"),
    ("slw_duration", slw(total_steps=None, schedule="custom"), None),
    ("first_length", {**slw(min_difficulty=64), **BIG}, None),
    ("first_length", {**slw(min_difficulty=56), **BIG}, "warning"),
    ("first_length", {**slw(min_difficulty=8), **LITTLE}, None),
    ("first_length", {**slw(min_difficulty=9), **LITTLE}, "warning"),
    ("first_length", slw(min_difficulty=2048), "error"),
    ("last_length", {**slw(), "seq_length": 2048}, None),
    ("last_length", {**slw(), "seq_length": 2040}, "error"),
    ("last_length", {**slw(), "seq_length": 2056}, "warning"),
    ("length_step", slw(difficulty_step=64), None),
    ("length_step", slw(difficulty_step=72), "note"),
    ("length_step", slw(difficulty_step=4), "warning"),
    ("discrete_stages", {**discrete((64, 128), (100,)), "lr_warmup_iters": 100}, None),
    ("discrete_stages", {**discrete((64, 128), (101,)), "lr_warmup_iters": 100}, "warning"),
    ("discrete_stages", {**discrete((64, 120), (101,)), "lr_warmup_iters": 100}, None),
    ("discrete_stages", {**discrete((64, 72, 144), (50, 151)), "lr_warmup_iters": 100}, "warning"),
    ("discrete_stages", discrete((64, 128), (100, 200)), "error"),
    ("discrete_stages", discrete((128, 64), (100,)), "error"),
    ("discrete_stages", discrete((8, 64, 128), (100, 100)), "error"),
    ("validation_under_slw", {**slw(total_steps=24_800), "eval_interval": 400}, None),
    ("validation_under_slw", {**slw(total_steps=24_800), "eval_interval": 401}, "note"),
    ("validation_under_slw", {**slw(), "eval_interval": 0}, "warning"),
    ("validation_under_slw", {"eval_interval": 0}, None),
    ("old_curriculum_block", slw(old_block=True), "note"),
    ("old_curriculum_block", slw(), None),
    ("beta2", {"adam_beta2": 0.98, **BIG}, None),
    ("beta2", {"adam_beta2": 0.981, **BIG}, "warning"),
    ("beta2", {"adam_beta2": 0.999, "declared_parameters": 9.9e9}, None),
    ("beta2", {"adam_beta2": 1.0}, "error"),
    ("beta2", {"adam_beta1": 1.0}, "error"),
    ("gradient_clipping", {"clip_grad": 1.0}, None),
    ("gradient_clipping", {"clip_grad": 1.1}, "note"),
    ("gradient_clipping", {"clip_grad": 0.0}, "warning"),
    ("half_precision", {"precision": "fp16", **BIG}, "note"),
    ("half_precision", {"precision": "bf16", **BIG}, None),
    ("half_precision", {"precision": "fp16", "declared_parameters": 99e9}, None),
    ("loss_scale", {"precision": "fp16", "initial_loss_scale": 2.0**16}, None),
    ("loss_scale", {"precision": "fp16", "initial_loss_scale": 2.0**17}, "note"),
    ("loss_scale", {"precision": "bf16", "initial_loss_scale": 2.0**32}, None),
    ("loss_scale", {"precision": "fp16", "static_loss_scale": 12.0}, "warning"),
    ("saves_at_all", {"save_interval": 0}, "error"),
    ("saves_at_all", {"save_interval": 100, "train_iters": 100}, None),
    ("saves_at_all", {"save_interval": 101, "train_iters": 100}, "warning"),
    ("work_at_stake", {"save_interval": 144, "step_time_s": 100.0}, None),
    ("work_at_stake", {"save_interval": 145, "step_time_s": 100.0}, "warning"),
    ("interval_for_failures", {"save_interval": 86, "step_time_s": 100.0, "node_failures_per_day": 1.0}, None),
    ("interval_for_failures", {"save_interval": 87, "step_time_s": 100.0, "node_failures_per_day": 1.0}, "warning"),
    ("interval_for_failures", {"save_interval": 87, "step_time_s": 100.0, "node_failures_per_day": 0.0}, None),
    ("interval_for_failures", {"save_interval": 172, **YOUNG}, None),
    ("interval_for_failures", {"save_interval": 174, **YOUNG}, "warning"),
    ("interval_for_failures", {"save_interval": 44, **YOUNG}, None),
    ("interval_for_failures", {"save_interval": 43, **YOUNG}, "note"),
    ("interval_for_failures", {"save_interval": 3, **YOUNG, "save_time_s": 1.0}, None),
    ("exits_before_the_limit", {"exit_duration_min": 1195.0, "time_limit_min": 1200.0}, None),
    ("exits_before_the_limit", {"exit_duration_min": 1196.0, "time_limit_min": 1200.0}, "warning"),
    ("exits_before_the_limit", {"exit_duration_min": 1200.0, "time_limit_min": 1200.0}, "error"),
    ("exits_before_the_limit", {"exit_duration_min": 1190.0, "time_limit_min": 1200.0, "save_time_s": 600}, "warning"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "facts", "severity"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_rule_speaks_just_outside_and_is_silent_just_inside(
    what: str, facts: dict[str, Any], severity: str | None
) -> None:
    assert {finding.severity for finding in said(ScriptFacts(**facts), what)} == ({severity} if severity else set())


def test_every_rule_has_a_case_where_it_speaks_and_one_where_it_is_silent() -> None:
    names = {rule.__name__ for rule in RULES}
    assert {what for what, _, severity in CASES if severity} == names
    assert {what for what, _, severity in CASES if not severity} == names


SAYS: list[tuple[str, dict[str, Any], str]] = [
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 5001, "gated_ffn": False}, "5 x hidden_size 1000: it should"),
    ("ffn_size", {"hidden_size": 1000, "ffn_hidden_size": 5000, "gated_ffn": False}, "and 4 x 1250: it should be 4000"),
    ("ffn_size", {"hidden_size": 3000, "ffn_hidden_size": 7000, "gated_ffn": True},
        "2.33 x hidden_size 3000; for a gated"),
    ("ffn_size", {"hidden_size": 3000, "ffn_hidden_size": 7000, "gated_ffn": True}, "about 8000 (8/3 x)"),
    ("width_depth_ratio", {"hidden_size": 16384, "num_layers": 32},
        "for 16384 wide, 150 to 200 means 82 to 109 layers"),
    ("width_depth_ratio", {"hidden_size": 400, "num_layers": 1}, "150 to 200 means 2 to 2 layers"),
    ("heads_divide_hidden", {"hidden_size": 11600, "num_attention_heads": 32}, "it should be 11584 or 11616"),
    ("heads_divide_hidden", {"hidden_size": 20, "num_attention_heads": 32}, "it should be 32"),
    ("padded_vocabulary", {"padded_vocab_size": 50257}, "not a multiple of 128: pad to 50304"),
    ("padded_vocabulary", {"padded_vocab_size": 50304, "tensor_model_parallel_size": 4},
        "128 x 4 tensor parallel ranks: pad to 50688"),
    ("padded_vocabulary", {"padded_vocab_size": 50257, "tensor_model_parallel_size": 4},
        "4 tensor parallel ranks: 50688 can"),
    ("initial_weights", {"hidden_size": 11600, "init_method_std": 0.02, **BIG},
        "3.4 x sqrt(2 / (5 x 11600)): about 0.0059 is"),
    ("ranks_divide_into_replicas", {"world_size": 63, **STAGES},
        "replicas of 8 (tensor 1 x pipeline 8): it takes 56 or 64"),
    ("ranks_divide_into_replicas", {"world_size": 4, **STAGES}, "it takes at least 8"),
    ("tensor_parallel_divides", {"tensor_model_parallel_size": 8, "num_attention_heads": 25},
        "8 tensor parallel ranks: 32 can"),
    ("layers_and_stages", {"num_layers": 63, **STAGES}, "8 pipeline stages: 56 or 64 layers can"),
    ("layers_and_stages", {"num_layers": 7, **STAGES}, "it takes at most 7 stages"),
    ("layers_and_stages", {"num_layers": 63, **STAGES, "pp_partition_method": "type:transformer|embedding"},
        "all wait for those with 9, of 8.12 on average; 62 or 70 layers"),
    ("batch_divides", {"global_batch_size": 1032, **RANKS},
        "8 replicas x micro-batch 2: it should be a multiple of 16"),
    ("batch_ramp_divides", {"global_batch_size": 1024, **ramp(16, 15)}, "1008 should be a multiple of the increment"),
    ("batch_ramp_divides", {"global_batch_size": 1024, **RANKS, **ramp(24, 16)},
        "start 24 is not a multiple of 8 replicas x micro-batch 2: 32 is"),
    ("batch_ramp_divides", {"global_batch_size": 40, **RANKS, **ramp(8, 8), "consumed_samples": 499}, "increment 8 is"),
    ("batch_ramp_ends", {"train_samples": 4000, **ramp(16, 16)}, "25% of the run"),
    ("pipeline_bubble", {"global_batch_size": 8 * 2 * 20, **RANKS},
        "idle 26% of the time: 20 micro-batches for 8 stages; from 21 micro-batches"),
    ("warmup_against_total", {"train_iters": 1000, "lr_warmup_iters": 250}, "250 of 1000 steps (25%)"),
    ("warmup_for_adam", {"train_iters": 10**5, "lr_warmup_iters": 39, "adam_beta2": 0.95}, "2 / (1 - beta2) = 40"),
    ("warmup_for_adam", {"train_iters": 240, "lr_warmup_iters": 20, "adam_beta2": 0.999},
        "= 2000, and a smaller beta2 fewer"),
    ("decay_against_total", {"train_iters": 1000, "lr_decay_iters": 2000},
        "over 2000 iterations, and the run takes 1000"),
    ("lr_bounds", {"lr": 1e-4, "min_lr": 1.1e-4}, "a tenth of it, 1e-05, is usual"),
    ("lr_for_size", {"lr": 6e-4, "declared_parameters": 350e6}, ""),
    ("lr_for_size", {"lr": 1.2e-3, "declared_parameters": 350e6}, "4 x what GPT-3 took at 350M, 0.0003"),
    ("lr_for_size", {"lr": 1e-3, "declared_parameters": 47.7e9}, "13 x what GPT-3 took at 47.7B, 7.7e-05"),
    ("slw_ends_by_tokens", {**slw(), "train_iters": 1000, "global_batch_size": 10, "seq_length": 2048},
        "say --train-tokens 20480000, and three times"),
    ("slw_ends_by_tokens", {**slw(), "train_samples": 1000}, "say --train-tokens, and three times"),
    ("slw_ends_by_tokens", {**ENDS, "train_samples": 1000},
        "after 100 steps by its samples or iterations, and needs 200 for 3104000 tokens: raise them to 2197 samples"),
    ("slw_decays_by_tokens", {**slw(), "lr_decay_samples": 1000, "seq_length": 2048},
        "--lr-decay-samples 1000 by --lr-decay-tokens 2048000"),
    ("slw_decays_by_tokens", {**slw(), "lr_decay_iters": 1000, "seq_length": 2048, "global_batch_size": 10},
        "--lr-decay-tokens 20480000"),
    ("slw_decays_by_tokens", {**slw(), "lr_decay_iters": 1000, "seq_length": 2048}, "by --lr-decay-tokens"),
    ("slw_warms_up_by_samples", {**slw(), "lr_warmup_samples": 216_320, "global_batch_size": 2048, **BIG},
        "13.8M tokens, GPT-3's saw 375M: --lr-warmup-samples 5859375"),
    ("slw_warms_up_by_samples", {**slw(), "lr_warmup_tokens": 6400}, "--lr-warmup-samples 100, which"),
    ("slw_duration", {**slw(total_steps=99), "lr_warmup_iters": 100}, "a few multiples of the warmup, 300 or more"),
    ("slw_duration", {**slw(total_steps=150), "lr_warmup_iters": 100}, "150 steps are 1.5 x the LR warmup's 100"),
    ("first_length", slw(min_difficulty=9), "ask for: 16 is"),
    ("discrete_stages", {**discrete((8, 64, 128), (50, 151)), "lr_warmup_iters": 100},
        "64 tokens are held for 101 steps"),
    ("validation_under_slw", {**slw(total_steps=24_800), "eval_interval": 401},
        "every 401 steps while the length changes every 100: let"),
    ("validation_under_slw", {**slw(total_steps=24_800, difficulty_step=None), "eval_interval": 401}, "be near 100"),
    ("loss_scale", {"precision": "fp16", "initial_loss_scale": 2.0**32}, "begins at 2^32: about 16 steps are skipped"),
    ("work_at_stake", {"save_interval": 1500, "step_time_s": 18.7, "world_size": 256},
        "loses 3.9 hours on average, 997 GPU-hours; save every 770 steps"),
    ("interval_for_failures", {"save_interval": 100, "step_time_s": 100.0, "node_failures_per_day": 1.0},
        "1 failures a day and 2.8 hours between saves lose 6% of the time: save every 86 steps"),
    ("interval_for_failures", {"save_interval": 200, **YOUNG},
        "lose 13.7% of the time, with saves of 432 s: every 86 steps would lose 10.0%"),
    ("exits_before_the_limit", {"exit_duration_min": 1200.0, "time_limit_min": 1200.0},
        "after 1200 minutes, and Slurm ends it after 1200: what it did"),
    ("exits_before_the_limit", {"exit_duration_min": 1196.0, "time_limit_min": 1200.0},
        "4 minutes are left for the last save before Slurm ends the job: say --exit-duration-in-mins 1195"),
    ("exits_before_the_limit", {"exit_duration_min": 1200.0, "time_limit_min": 1200.0, "save_time_s": 600},
        "--exit-duration-in-mins 1188"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "facts", "fragment"), SAYS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_sentence_has_the_numbers_and_what_would_be_right(what: str, facts: dict[str, Any], fragment: str) -> None:
    sentences = [finding.sentence for finding in said(ScriptFacts(**facts), what)]
    assert any(fragment in sentence for sentence in sentences) if fragment else not sentences, sentences


@pytest.mark.parametrize(("consumed", "batch"), [(0, 8), (249, 8), (250, 24), (499, 24), (500, 40), (999, 56)])
def test_a_run_that_resumes_is_asked_from_its_own_stage_on(consumed: int, batch: int) -> None:
    facts = ScriptFacts(global_batch_size=72, **RANKS, **ramp(8, 16), consumed_samples=consumed)
    assert [f"start {batch} is not" in finding.sentence for finding in said(facts, "batch_ramp_divides")] == [True]


def test_nothing_known_is_nothing_said() -> None:
    assert lint(ScriptFacts()) == ()


def test_errors_come_first() -> None:
    order = [("error", "warning", "note").index(finding.severity) for finding in lint(TR8)]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2}


def numbers(f: Any) -> st.SearchStrategy[Any]:
    return st.none() | (st.integers(1, 10**13) if "int" in str(f.type) else st.floats(1e-9, 1e13))


PLAIN = [f for f in fields(ScriptFacts) if str(f.type) in ("int | None", "float | None")]


@given(st.fixed_dictionaries({}, optional={f.name: numbers(f) for f in PLAIN}), st.booleans(), st.booleans())
def test_whatever_is_known_every_sentence_is_whole(known: dict[str, Any], with_slw: bool, gated: bool) -> None:
    facts = ScriptFacts(
        **known,
        gated_ffn=gated,
        precision="fp16",
        rampup_batch_size=BatchRamp(start=16, increment=3, samples=10**6),
        curriculum=replace(SLW, old_block=True) if with_slw else None,
    )
    for finding in lint(facts):
        assert finding.source
        assert "None" not in finding.sentence
        assert "nan" not in finding.sentence


@given(tokens=st.integers(1, 3 * 10**7), steps=st.integers(1, 2_000))
def test_tokens_under_slw_are_the_sum_of_its_lengths(tokens: int, steps: int) -> None:
    facts = ScriptFacts(seq_length=2048, global_batch_size=10, curriculum=replace(SLW, total_steps=steps))
    found, schedule = steps_of(facts, "tokens", tokens), curriculum_schedule(facts)
    assert found is not None
    assert schedule is not None
    whole = int(found)
    seen = sum(10 * schedule.seqlen(step) for step in range(1, whole + 1))
    assert seen + 10 * schedule.seqlen(whole + 1) * (found - whole) == pytest.approx(tokens, rel=1e-6)


def restart(before: ScriptFacts, after: ScriptFacts, step: int) -> dict[str, str]:
    return {finding.what: finding.severity for finding in lint_before_restart(before, after, resume_step=step)}


def test_a_restart_is_not_told_what_the_run_has_lived_with() -> None:
    assert restart(TR8, replace(TR8, adam_beta2=0.95), 6210) == {}
    assert restart(TR8, replace(TR8, min_lr=1e-3), 6210) == {"lr_bounds": "error"}


def test_a_checkpoint_keeps_its_shape() -> None:
    corrected = replace(TR8, ffn_hidden_size=65536)
    assert restart(TR8, corrected, 6210) == {"same_shape": "error"}
    assert restart(TR8, corrected, 0) == {}
    assert restart(TR8B, replace(TR8B, pipeline_model_parallel_size=16), 6000) == {"same_shape": "warning"}


def test_slw_that_counts_from_step_0_is_over_before_a_late_restart() -> None:
    without = replace(TR8B, curriculum=None)
    assert restart(without, TR8B, 36_000)["slw_still_to_come"] == "error"
    assert restart(without, TR8B, 35_999)["slw_still_to_come"] == "warning"
    assert "slw_still_to_come" not in restart(without, TR8B, 0)
    assert restart(TR8B, TR8B, 36_000) == {}


def test_the_page_has_the_rules_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    for rule in (*RULES, *RESTART_RULES):
        looks_at = " ".join((rule.__doc__ or "").partition("Source:")[0].split()).replace("|", "\\|")
        assert f"| `{rule.__name__}` | {looks_at} | {source_of(rule)} |" in page
    assert sum(line.startswith("| `") for line in page) == len(RULES) + len(RESTART_RULES)
