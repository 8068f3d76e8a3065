"""Runs as their papers, chronicles and job scripts give them: figures, each with its source."""

from __future__ import annotations

import math
from ast import literal_eval
from dataclasses import replace
from typing import Any

from sentinel.jobscript.facts import BatchRamp, Curriculum, DeepSpeedJson, ScriptFacts

__all__ = ["PUBLISHED", "SLW", "TR8", "TR8B"]


def run(figures: str, **more: Any) -> ScriptFacts:
    """`figures` are facts as `name=value`; `shape` is the layers, the hidden size and the attention heads."""
    words = (word.partition("=") for word in figures.split())
    told: dict[str, Any] = {name: literal_eval(value) for name, _, value in words}
    names = ("num_layers", "hidden_size", "num_attention_heads")
    return ScriptFacts(**dict(zip(names, told.pop("shape"), strict=True)) | told | more)


_OF_TR8 = """seq_length=2048 micro_batch_size=1 global_batch_size=2048 lr=6e-5 min_lr=6e-6 clip_grad=1.0
    declared_parameters=104e9 tensor_model_parallel_size=4 gpus_per_node=4 gated_ffn=False precision='fp16'
    initial_loss_scale=4096.0"""
TR8 = run(
    f"""{_OF_TR8} shape=(32,16384,32) ffn_hidden_size=20480 pipeline_model_parallel_size=8 world_size=256
    train_samples=300_000_000 lr_decay_samples=126_953_125 lr_warmup_samples=216_320 adam_beta2=0.999
    init_method_std=0.02 embed_layernorm=False save_interval=1500 step_time_s=18.7""",
    rampup_batch_size=BatchRamp(start=16, increment=16, samples=6_000_000),
)
"""tr8-104B, experiment 1: its chronicle and its job script of 2021-09-23."""

SLW = Curriculum(min_difficulty=64, max_difficulty=2048, difficulty_step=8, schedule="fixed_linear", total_steps=36_000)
TR8B = run(
    f"""{_OF_TR8} shape=(64,11600,80) pipeline_model_parallel_size=32 world_size=512 train_samples=600_000_000
    lr_warmup_samples=3_750_000 train_tokens=300_000_000_000 adam_beta2=0.95 init_method_std=0.006
    embed_layernorm=True eval_interval=150 save_interval=300""",
    lr_decay_tokens=126_953_125 * 2048,
    curriculum=SLW,
)
"""tr8b-104B, CL experiment 3: its chronicle and its job script tr8b-104B-cl.slurm."""


def gpt3(layers: int, hidden: int, heads: int, billions: float, lr: float, batch_tokens: float) -> ScriptFacts:
    """Brown et al. 2020, Table 2.1 and appendix B: 300B tokens, warmup 375M, decay 260B, Adam (0.9, 0.95), clip 1."""
    return run(
        f"""shape=({layers},{hidden},{heads}) ffn_hidden_size={4 * hidden} gated_ffn=False seq_length=2048
        vocab_size=50257 make_vocab_size_divisible_by=128 declared_parameters={billions * 1e9} lr={lr} min_lr={lr / 10}
        global_batch_size={round(batch_tokens / 2048 / 16) * 16} train_tokens=300_000_000_000 adam_beta2=0.95
        lr_warmup_tokens=375_000_000 lr_decay_tokens=260_000_000_000 clip_grad=1.0"""
    )


def llama(layers: int, hidden: int, heads: int, ffn: int, billions: float, lr: float, **more: Any) -> ScriptFacts:
    """Touvron et al. 2023, Table 2 (arXiv:2302.13971) and the released params.json; LLaMA 2: arXiv:2307.09288."""
    return run(
        f"""shape=({layers},{hidden},{heads}) ffn_hidden_size={ffn} gated_ffn=True learned_positions=False
        tied_embeddings=False seq_length=2048 padded_vocab_size=32000 declared_parameters={billions * 1e9}
        global_batch_size=2048 train_tokens=1_400_000_000_000 lr_warmup_iters=2000 lr={lr} min_lr={lr / 10}
        adam_beta2=0.95 clip_grad=1.0 precision='bf16'""",
        **more,
    )


def pythia(layers: int, hidden: int, heads: int, millions: float, lr: float) -> ScriptFacts:
    """Biderman et al. 2023, Tables 1 and 6 (arXiv:2304.01373): 143000 steps of 1024 x 2048, warmup 1 %."""
    return run(
        f"""shape=({layers},{hidden},{heads}) gated_ffn=False learned_positions=False tied_embeddings=False
        seq_length=2048 padded_vocab_size=50304 declared_parameters={millions * 1e6} global_batch_size=1024
        train_iters=143_000 lr_warmup_iters=1430 lr_decay_iters=143_000 lr={lr} min_lr={lr / 10} adam_beta2=0.95
        clip_grad=1.0 precision='fp16'"""
    )


_OF_GPT2 = """seq_length=1024 vocab_size=50257 global_batch_size=512 train_iters=300_000 lr_warmup_iters=3000 lr=1.5e-4
    min_lr=1e-5 adam_beta2=0.999 clip_grad=1.0 precision='fp16'"""

PUBLISHED = {
    "GPT-3 125M": gpt3(12, 768, 12, 0.125, 6.0e-4, 0.5e6),
    "GPT-3 350M": gpt3(24, 1024, 16, 0.35, 3.0e-4, 0.5e6),
    "GPT-3 760M": gpt3(24, 1536, 16, 0.76, 2.5e-4, 0.5e6),
    "GPT-3 1.3B": gpt3(24, 2048, 16, 1.3, 2.0e-4, 1e6),  # the table prints 24 heads of 128, which 2048 does not have
    "GPT-3 2.7B": gpt3(32, 2560, 32, 2.7, 1.6e-4, 1e6),
    "GPT-3 6.7B": gpt3(32, 4096, 32, 6.7, 1.2e-4, 2e6),
    "GPT-3 13B": gpt3(40, 5120, 40, 13, 1.0e-4, 2e6),  # the table prints 5140, which 40 heads do not divide
    "GPT-3 175B": gpt3(96, 12288, 96, 175, 0.6e-4, 3.2e6),
    # BigScience, train/tr11-176B-ml: README and job script
    "tr11-176B": run(
        """shape=(70,14336,112) gated_ffn=False learned_positions=False padded_vocab_size=250_880
        declared_parameters=176e9 seq_length=2048 max_position_embeddings=2048 tensor_model_parallel_size=4
        pipeline_model_parallel_size=12 pp_partition_method='type:transformer|embedding' world_size=384
        gpus_per_node=8 micro_batch_size=2 global_batch_size=2048 train_samples=220_000_000
        lr_decay_samples=200_000_000 lr_warmup_samples=183_105 lr=6e-5 min_lr=6e-6 adam_beta2=0.95 clip_grad=1.0
        init_method_std=0.0048 embed_layernorm=True precision='bf16' save_interval=100 step_time_s=105.2
        exit_duration_min=5990 time_limit_min=6000""",
        node_failures_per_day=1 / 7,
        rampup_batch_size=BatchRamp(start=192, increment=16, samples=9_765_625),
        deepspeed=DeepSpeedJson(
            train_batch_size=2048, micro_batch_size=2, gradient_clipping=1.0, bf16=True, zero_stage=0
        ),
    ),
    # BigScience, train/tr1-13B-base/tr1-13B-round1.slurm; on 32 nodes of 4 GPUs, as its chronicle has it for round 3
    "tr1-13B": run(
        """shape=(40,5120,32) ffn_hidden_size=20480 gated_ffn=False seq_length=2048 vocab_size=50257
        declared_parameters=13e9 tensor_model_parallel_size=2 pipeline_model_parallel_size=4 micro_batch_size=1
        global_batch_size=1024 world_size=128 train_samples=300_000_000 lr_warmup_samples=216_320
        lr_decay_samples=126_953_125 lr=1e-4 min_lr=1e-5 precision='fp16'""",
        rampup_batch_size=BatchRamp(start=16, increment=16, samples=5_000_000),
    ),
    # Zhang et al. 2022, Table 1 and section 2 (arXiv:2205.01068), and the released configuration
    "OPT-175B": run(
        """shape=(96,12288,96) ffn_hidden_size=49152 gated_ffn=False seq_length=2048 padded_vocab_size=50272
        declared_parameters=175e9 global_batch_size=1024 train_tokens=300_000_000_000 lr_warmup_iters=2000 lr=1.2e-4
        adam_beta2=0.95 clip_grad=1.0 init_method_std=0.006 embed_layernorm=False precision='fp16'
        tensor_model_parallel_size=8 pipeline_model_parallel_size=1 world_size=992"""
    ),
    "Pythia-70m": pythia(6, 512, 8, 70, 1.0e-3),
    "Pythia-160m": pythia(12, 768, 12, 160, 6.0e-4),
    "Pythia-1.4b": pythia(24, 2048, 16, 1400, 2.0e-4),
    "Pythia-6.9b": pythia(32, 4096, 32, 6900, 1.2e-4),
    "Pythia-12b": pythia(36, 5120, 40, 12000, 1.2e-4),
    # Radford et al. 2019, Table 2, as trained by Li, Zhang & He 2022, section 3 (arXiv:2108.06084)
    "GPT-2 117M": run(f"{_OF_GPT2} shape=(12,768,12) declared_parameters=117e6"),
    "GPT-2 1.5B": run(f"{_OF_GPT2} shape=(48,1600,25) declared_parameters=1.5e9"),
    # the same paper's Table 2, case 11: SLW on it
    "GPT-2 1.5B with SLW": run(
        """shape=(48,1600,25) seq_length=1024 declared_parameters=1.5e9 global_batch_size=512 adam_beta2=0.999
        train_tokens=157_000_000_000 lr_decay_tokens=157_000_000_000""",
        train_samples=3 * 300_000 * 512,
        lr_warmup_samples=3000 * 512,
        curriculum=replace(SLW, max_difficulty=1024, total_steps=270_000),
    ),
    "LLaMA 7B": llama(32, 4096, 32, 11008, 6.7, 3.0e-4),
    "LLaMA 13B": llama(40, 5120, 40, 13824, 13.0, 3.0e-4),
    "LLaMA 33B": llama(60, 6656, 52, 17920, 32.5, 1.5e-4),
    "LLaMA 65B": llama(80, 8192, 64, 22016, 65.2, 1.5e-4),
    "LLaMA 2 70B": llama(80, 8192, 64, 28672, 70, 1.5e-4, num_query_groups=8),
    # Smith et al. 2022, section 2 (arXiv:2201.11990)
    "MT-NLG 530B": run(
        """shape=(105,20480,128) gated_ffn=False seq_length=2048 vocab_size=50257 declared_parameters=530e9
        tensor_model_parallel_size=8 pipeline_model_parallel_size=35 world_size=2240 gpus_per_node=8
        micro_batch_size=1 global_batch_size=1920 train_samples=131_835_938 lr_warmup_samples=500_000 lr=5e-5
        min_lr=5e-6 adam_beta2=0.95 clip_grad=1.0 precision='bf16'""",
        init_method_std=math.sqrt(1 / (3 * 20480)),
        rampup_batch_size=BatchRamp(start=32, increment=32, samples=6_000_000),
    ),
}
