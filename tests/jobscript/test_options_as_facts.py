"""Each option of the trainers as the fact that it is, each default, and each value that is none."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from sentinel.jobscript.facts import BatchRamp, Curriculum, DeepSpeedJson, ScriptFacts
from sentinel.jobscript.reading import Read, read_command, read_text


def known(read: Read) -> dict[str, Any]:
    """All that is known, by name."""
    facts = {f.name: getattr(read.facts, f.name) for f in fields(ScriptFacts)}
    return {name: value for name, value in facts.items() if value is not None}


def megatron(words: str) -> Read:
    return read_text(f"python pretrain_gpt.py {words}\n")


def unread(read: Read) -> set[str]:
    return {each.what for each in read.unread}


MEGATRON_DEFAULTS: dict[str, Any] = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_eps": 1e-8,
    "weight_decay": 0.01,
    "clip_grad": 1.0,
    "gated_ffn": False,
    "embed_layernorm": False,
    "tied_embeddings": True,
    "learned_positions": True,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "make_vocab_size_divisible_by": 128,
    "init_method_std": 0.02,
    "initial_loss_scale": 2.0**32,
    "lr_warmup_iters": 0,
    "save_interval": 0,
}
"""megatron/arguments.py, for options that are not given."""

GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("--hidden-size 12 --ffn-hidden-size 13", {"hidden_size": 12, "ffn_hidden_size": 13}),
    ("--num-layers 1 --num-attention-heads 15", {"num_layers": 1, "num_attention_heads": 15}),
    ("--kv-channels 16 --seq-length 17", {"kv_channels": 16, "seq_length": 17}),
    ("--max-position-embeddings 18 --vocab-size 19", {"max_position_embeddings": 18, "vocab_size": 19}),
    ("--padded-vocab-size 20", {"padded_vocab_size": 20}),
    ("--pad-vocab-size-to 20", {"padded_vocab_size": 20}),
    ("--make-vocab-size-divisible-by 21 --num-experts 22", {"make_vocab_size_divisible_by": 21, "num_experts": 22}),
    ("--tensor-model-parallel-size 23", {"tensor_model_parallel_size": 23}),
    ("--pipeline-model-parallel-size 24", {"pipeline_model_parallel_size": 24}),
    ("--context-parallel-size 25 --world-size 26", {"context_parallel_size": 25, "world_size": 26}),
    ("--ds-sequence-parallel-size 25", {"context_parallel_size": 25}),
    ("--micro-batch-size 27 --global-batch-size 28", {"micro_batch_size": 27, "global_batch_size": 28}),
    ("--train-iters 30 --lr-decay-iters 33", {"train_iters": 30, "lr_decay_iters": 33}),
    ("--train-samples 29", {"train_samples": 29, "lr_warmup_samples": 0, "lr_warmup_iters": None}),
    ("--train-tokens 31 --lr-decay-tokens 34", {"train_tokens": 31, "lr_decay_tokens": 34}),
    ("--lr-decay-samples 32", {"lr_decay_samples": 32}),
    ("--lr-warmup-samples 35", {"lr_warmup_samples": 35, "lr_warmup_iters": None}),
    ("--lr-warmup-iters 36", {"lr_warmup_iters": 36}),
    ("--lr-warmup-tokens 37", {"lr_warmup_tokens": 37, "lr_warmup_iters": None}),
    ("--lr-warmup-fraction 0.5", {"lr_warmup_fraction": 0.5, "lr_warmup_iters": None}),
    ("--eval-interval 38 --exit-interval 39", {"eval_interval": 38, "exit_interval": 39}),
    ("--eval-interval 0 --exit-interval 0", {"eval_interval": 0, "exit_interval": 0}),
    ("--exit-duration-in-mins 40.5", {"exit_duration_min": 40.5}),
    ("--lr 0 --min-lr 0 --init-method-std 0.5", {"lr": 0.0, "min_lr": 0.0, "init_method_std": 0.5}),
    ("--adam-beta1 0.5 --adam-beta2 0.25 --adam-eps 1", {"adam_beta1": 0.5, "adam_beta2": 0.25, "adam_eps": 1.0}),
    ("--weight-decay 0.5 --clip-grad 0", {"weight_decay": 0.5, "clip_grad": 0.0}),
    ("--glu-activation geglu", {"gated_ffn": True}),
    ("--swiglu --untie-embeddings-and-output-weights", {"gated_ffn": True, "tied_embeddings": False}),
    ("--position-embedding-type alibi --embed-layernorm", {"learned_positions": False, "embed_layernorm": True}),
    ("--num-query-groups 1", {}),
    ("--bf16", {"precision": "bf16"}),
    ("--fp16", {"precision": "fp16"}),
    ("--fp16 --loss-scale 12", {"precision": "fp16", "static_loss_scale": 12.0}),
    ("--loss-scale 12 --deepspeed", {"initial_loss_scale": None, "pp_partition_method": "type:transformer"}),
    ("--lr-warmup-iters 0 --lr-warmup-samples 0", {}),
    ("--pp-partition-method 'type:transformer|embedding'", {"pp_partition_method": "type:transformer|embedding"}),
    ("--use-rotary-position-embeddings", {"learned_positions": False}),
    ("--position-embedding-type rope", {"learned_positions": False}),
    ("--position-embedding-type absolute", {}),
    ("--position-embedding-type Learned_Absolute", {}),
    ("--group-query-attention --num-query-groups 8", {"num_query_groups": 8}),
    ("--group-query-attention", {}),
    ("--num-key-value-heads 8", {"num_query_groups": 8}),
    ("--rampup-batch-size 16 8 1_000", {"rampup_batch_size": BatchRamp(start=16, increment=8, samples=1000)}),
    ("--loss-scale 0", {}),
    ("--loss-scale 4", {"static_loss_scale": 4.0}),
    ("--initial-loss-scale 4096", {"initial_loss_scale": 4096.0}),
    ("--deepspeed", {"initial_loss_scale": None, "pp_partition_method": "type:transformer"}),
    ("--deepspeed --no-pipeline-parallel", {"initial_loss_scale": None}),
    ("--save-interval 5", {}),
    ("--save x", {}),
    ("--save x --save-interval 5", {"save_interval": 5}),
    ("--save x --save-interval 0", {"save_interval": 0}),
    ("--hidden-size 12 --hidden-size 13", {"hidden_size": 13}),
    ("--hidden-size=12", {"hidden_size": 12}),
    ("--train-samples 300_000", {"train_samples": 300_000, "lr_warmup_samples": 0, "lr_warmup_iters": None}),
]


SCHEDULERS = {
    "--override-opt_param-scheduler": "opt_param-scheduler",
    "--use-checkpoint-opt_param-scheduler": "opt_param-scheduler",
    "--override-opt-param-scheduler": "opt-param-scheduler",
    "--override-lr-scheduler": "lr-scheduler",
    "--kill-switch-path x": "lr-scheduler",
    "--no-gradient-accumulation-fusion": "opt_param-scheduler",
    "--use-flash-attn --kill-switch-path x": None,
}
"""Which LR scheduler the parser has, as its own options tell."""

EACH = [("--x", {}), *GIVEN, *((words, {}) for words in SCHEDULERS)]


@pytest.mark.parametrize(("words", "facts"), EACH, ids=lambda x: x if isinstance(x, str) else "")
def test_an_option_is_its_fact_and_the_rest_are_megatron_s_defaults(words: str, facts: dict[str, Any]) -> None:
    read = megatron(words)
    seen = {name: v for name, v in known(read).items() if name != "lr_scheduler" or words in SCHEDULERS}
    wanted = MEGATRON_DEFAULTS | facts | {"lr_scheduler": SCHEDULERS.get(words)}
    assert seen == {name: v for name, v in wanted.items() if v is not None}
    assert not read.unread


@pytest.mark.parametrize(("flag", "name"), [("--num-layers", "num_layers"), ("--train-iters", "train_iters")])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "big", ""])
def test_a_size_that_is_no_positive_whole_number_is_not_known(flag: str, name: str, value: str) -> None:
    read = megatron(f"{flag} '{value}'" if value else flag)
    assert name not in known(read)
    assert unread(read) == {flag}


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "-0.5", "much"])
@pytest.mark.parametrize(("flag", "name"), [("--clip-grad", "clip_grad"), ("--lr", "lr")])
def test_a_number_that_is_negative_or_none_is_not_known(flag: str, name: str, value: str) -> None:
    read = megatron(f"{flag} {value}")
    assert name not in known(read)
    assert unread(read) == {flag}


@pytest.mark.parametrize("values", ["16 16", "16 16 100 5", "16 0 100", "x 16 100", ""])
def test_a_ramp_is_three_numbers_above_zero(values: str) -> None:
    read = megatron(f"--rampup-batch-size {values}")
    assert "rampup_batch_size" not in known(read)
    assert unread(read) == {"--rampup-batch-size"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *(("--lr-warmup-samples $N", "lr_warmup_samples"), ("--save x --save-interval $N", "save_interval")),
        *(("--init-method-std $N", "init_method_std"), ("--initial-loss-scale $N", "initial_loss_scale")),
        *(("--loss-scale $N", "static_loss_scale"), ("--rampup-batch-size $N", "rampup_batch_size")),
        *(("--position-embedding-type $N", "learned_positions"), ("--position-embedding-type", "learned_positions")),
        ("--initial-loss-scale", "initial_loss_scale"),
        ("--group-query-attention --num-query-groups x", "num_query_groups"),
    ],
)
def test_an_option_whose_value_is_not_seen_has_no_default(words: str, name: str) -> None:
    read = megatron(words)
    assert name not in known(read)
    assert unread(read) == {words.removesuffix(" $N").removesuffix(" x").split()[-1]}


OWN_DEFAULTS: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 128,
    "gated_ffn": False,
    "tied_embeddings": True,
    "learned_positions": True,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "global_batch_size": 16,
    "lr": 6e-4,
    "min_lr": 0.0,
    "lr_warmup_iters": 0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "clip_grad": 1.0,
    "precision": "fp32",
    "save_interval": 0,
    "eval_interval": 0,
}
SHAPES = {
    "117M": (12, 768, 12, 1024, 117e6),
    "350M": (24, 1024, 16, 1024, 350e6),
    "1.5B": (48, 1600, 25, 1024, 1.5e9),
    "gpt3-125M": (12, 768, 12, 2048, 125e6),
    "gpt3-1.3B": (24, 2048, 16, 2048, 1.3e9),
}


def shape(preset: str) -> dict[str, Any]:
    return dict(
        zip(
            ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "declared_parameters"),
            SHAPES[preset],
            strict=True,
        )
    )


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("", {}),
        *((f"--preset {name}", shape(name)) for name in SHAPES),
        ("--lr-warmup 5 --lr-decay 7", {"lr_warmup_iters": 5, "lr_decay_iters": 7}),
        (
            "--lr-unit tokens --lr-warmup 5 --lr-decay 7",
            {"lr_warmup_tokens": 5, "lr_decay_tokens": 7, "lr_warmup_iters": None},
        ),
        ("--lr-decay 0", {}),
        ("--steps 9 --tokens 10 --seqlen 11", {"train_iters": 9, "train_tokens": 10, "seq_length": 11}),
        ("--lr 0.5 --lr-min 0.25 --clip 0", {"lr": 0.5, "min_lr": 0.25, "clip_grad": 0.0}),
        ("--beta1 0.5 --beta2 0.25", {"adam_beta1": 0.5, "adam_beta2": 0.25}),
        ("--global-batch 12 --micro-batch 3", {"global_batch_size": 12, "micro_batch_size": 3}),
        ("--validate-every 4 --save-interval 6", {"eval_interval": 4, "save_interval": 6}),
        ("--vocabulary 99 --precision bf16", {"padded_vocab_size": 99, "precision": "bf16"}),
        ("--run tr8-104B", {"declared_parameters": 104e9}),
        (
            "--seqlen-start 8 --seqlen-warmup-steps 60",
            {
                "curriculum": Curriculum(
                    min_difficulty=8, max_difficulty=128, difficulty_step=8, schedule="fixed_linear", total_steps=60
                )
            },
        ),
    ],
)
def test_our_own_trainer_s_options_are_facts_and_the_rest_are_its_defaults(words: str, facts: dict[str, Any]) -> None:
    read = read_command(["python", "-m", "trainer_hooks.gpt", *words.split()])
    assert known(read) == {name: v for name, v in (OWN_DEFAULTS | facts).items() if v is not None}
    assert not read.unread


SLW = {"curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 64, "schedule_type": "fixed_linear"}
READ_SLW = Curriculum(min_difficulty=8, max_difficulty=64, schedule="fixed_linear")


def efficient(metrics: Any, *, outer: Any = True, inner: Any = True) -> dict[str, Any]:
    sampling = {"curriculum_learning": {"enabled": inner, "curriculum_metrics": metrics}}
    return {"data_efficiency": {"enabled": outer, "data_sampling": sampling}}


def old(**changed: Any) -> Curriculum:
    told = {"min_difficulty": 8, "max_difficulty": 64, "schedule": "fixed_linear", "old_block": True}
    return Curriculum(**(told | changed))


UNTYPED = {name: value for name, value in SLW.items() if name != "curriculum_type"}
STAGES = {
    "schedule_type": "fixed_discrete",
    "schedule_config": {"difficulty": [8, 16.0, True, 64], "max_step": [5, "x", 9]},
}


def scaled(facts: dict[str, Any], **fp16: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A JSON with these fp16 settings, what is read of it, and what follows."""
    return {"fp16": {"enabled": True, **fp16}}, {"fp16": True, **fp16}, {"precision": "fp16", **facts}


def curriculum(**told: Any) -> dict[str, Any]:
    return {"curriculum_learning": {"enabled": True, **SLW, **told}}


@pytest.mark.parametrize(
    ("data", "engine", "facts"),
    [
        ({}, {}, {}),
        (
            {"train_batch_size": 2.048e3, "gradient_clipping": 0.5},
            {"train_batch_size": 2048, "gradient_clipping": 0.5},
            {},
        ),
        ({"train_micro_batch_size_per_gpu": 2}, {"micro_batch_size": 2}, {}),
        ({"train_batch_size": "auto", "gradient_clipping": None}, {}, {}),
        ({"train_batch_size": True}, {}, {}),
        ({"zero_optimization": {"stage": 0}}, {"zero_stage": 0}, {}),
        ({"zero_optimization": 2, "fp16": "auto"}, {}, {}),
        ({"bf16": {"enabled": True}}, {"bf16": True}, {"precision": "bf16"}),
        ({"bfloat16": {"enabled": True}}, {"bf16": True}, {"precision": "bf16"}),
        ({"fp16": {"enabled": False, "loss_scale": 4}}, {"fp16": False, "loss_scale": 4}, {}),
        ({"fp16": {"enabled": "auto"}}, {}, {}),
        scaled({"initial_loss_scale": 2.0**16}),
        scaled({"initial_loss_scale": 1.0}, loss_scale=0, initial_scale_power=0),
        scaled({"static_loss_scale": 128}, loss_scale=128, initial_scale_power=3),
        scaled({"initial_loss_scale": 2.0**1000}, initial_scale_power=1000),
        scaled({}, initial_scale_power=1001),
        (curriculum(), {}, {"curriculum": old()}),
        ({"curriculum_learning": {"enabled": True, **UNTYPED}}, {}, {"curriculum": old()}),
        (curriculum(curriculum_type="voc"), {}, {}),
        (curriculum(enabled=1), {}, {}),
        (curriculum(enabled=False), {}, {}),
        ({"curriculum_learning": None}, {}, {}),
        (curriculum(schedule_type=3), {}, {"curriculum": old(schedule=None)}),
        (
            *(curriculum(**STAGES), {}),
            {"curriculum": old(schedule="fixed_discrete", difficulties=(8, 64), max_steps=(5, 9))},
        ),
        (
            curriculum(schedule_config={"total_curriculum_step": 36000, "difficulty_step": 8}),
            {},
            {"curriculum": old(total_steps=36000, difficulty_step=8)},
        ),
        (efficient({"seqlen_truncate": SLW}), {}, {"curriculum": READ_SLW}),
        (efficient({"seqlen_truncate": SLW}, outer=None), {}, {"curriculum": READ_SLW}),
        (efficient({"seqlen_truncate": SLW}, outer=False), {}, {}),
        (efficient({"seqlen_truncate": SLW}, inner=False), {}, {}),
        (efficient({"vocabularyrarity": SLW}), {}, {}),
        (efficient(None), {}, {}),
    ],
)
def test_a_deepspeed_json_says_what_its_engine_takes_from_it(
    data: dict[str, Any], engine: dict[str, Any], facts: dict[str, Any]
) -> None:
    read = read_text(json.dumps(data))
    assert known(read) == {"deepspeed": DeepSpeedJson(**engine), **facts}
    assert not read.unread


@pytest.mark.parametrize(
    ("words", "format_"),
    [
        *(("train.py --num-layers 2", "not understood"), ("train.py --num-layers 2 --hidden-size 8", "command")),
        *(("train.py --train-samples 2", "command"), ("pretrain_bert.py", "command")),
        *(("a/b/pretrain_gpt.py --lr 1", "command"), ("-m pretrain_gpt --lr 1", "command")),
        ("--module pretrain_gpt --lr 1", "command"),
        ("-m torch.distributed.run pretrain_gpt.py --lr 1", "command"),
    ],
)
def test_a_program_is_megatron_s_by_its_name_or_by_its_options(words: str, format_: str) -> None:
    assert read_command(["python", *words.split()]).format == format_


@pytest.mark.parametrize(
    ("head", "start", "facts"),
    [
        ([], "torchrun --nproc_per_node 8 --nnodes 2", {"gpus_per_node": 8, "world_size": 16}),
        ([], "torchrun --nproc_per_node 8 --nnodes $N", {"gpus_per_node": 8}),
        (["-N 2"], "torchrun --nproc-per-node=8 --nnodes=$SLURM_NNODES", {"gpus_per_node": 8, "world_size": 16}),
        (["--gpus-per-node=a100:4"], "python", {"gpus_per_node": 4}),
        ([], "torchrun --nnodes $N", {}),
        ([], "deepspeed --num_gpus 4 --num_nodes 3", {"gpus_per_node": 4, "world_size": 12}),
        ([], "torchrun --nproc_per_node gpu", {}),
        ([], "torchrun --nproc_per_node 0", {}),
        (["--gres=gpu:4"], "python", {"gpus_per_node": 4}),
        (["--gres=gpu:a100:4"], "python", {"gpus_per_node": 4}),
        (["--gres=gpu:0"], "python", {}),
        (["--gres=gpu"], "python", {}),
        (["--gpus-per-node=2", "--gres=gpu:4"], "python", {"gpus_per_node": 2}),
        (["--gres=gpu:4"], "torchrun --nproc_per_node 8", {"gpus_per_node": 8, "world_size": 8}),
        (["--nodes=2", "--gres=gpu:4"], "torchrun --nproc_per_node 8", {"gpus_per_node": 8}),
        (["--time=1:30:00"], "python", {"time_limit_min": 90.0}),
        (["--time=0"], "python", {}),
        (["--job-name=tr8-104B"], "python", {"declared_parameters": 104e9}),
    ],
)
def test_ranks_and_time_are_what_sbatch_and_the_launcher_are_asked_for(
    head: list[str], start: str, facts: dict[str, Any]
) -> None:
    lines = ["#!/bin/bash", *(f"#SBATCH {each}" for each in head), f"{start} pretrain_gpt.py --x", ""]
    found = known(read_text("\n".join(lines)))
    assert {name: v for name, v in found.items() if name not in MEGATRON_DEFAULTS} == facts


@pytest.mark.parametrize(
    ("words", "name", "size"),
    [
        ("--wandb-exp-name tr8-104B", "gpt-7B", 104e9),
        ("--wandb-exp-name tr8", "gpt-7B", 7e9),
        ("--wandb-exp-name", "gpt-7B", 7e9),
        ("", "gpt", None),
    ],
)
def test_the_first_name_with_a_size_declares_it(words: str, name: str, size: float | None) -> None:
    assert read_text(f"python pretrain_gpt.py --x {words}\n", name).facts.declared_parameters == size
