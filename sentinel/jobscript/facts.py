"""What is known of a run before it trains: its shape, its batches, its schedules. What is not known is None."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Literal

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import LARGEST_WHOLE
from sentinel.vocabulary.training_settings import OptimizerSettings

# What stands behind Megatron's `--override-` and `--use-checkpoint-`, where its LR is to come from the options or from
# the checkpoint: BigScience's fork and Megatron-LM up to 2.6 have the first name, Microsoft's fork and Megatron-LM the
# second, newer Megatron-LM also the third.
LrScheduler = Literal["lr-scheduler", "opt_param-scheduler", "opt-param-scheduler"]


class _Checked:
    """Numbers in it are finite, not negative, whole ones at most 2^53, sizes not 0: every formula has a value."""

    __slots__ = ()

    may_be_zero = frozenset[str]()

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if isinstance(value, int) and value > LARGEST_WHOLE:
                raise ConfigError(f"{f.name} should be a number of at most 2^53, and is larger")
            if not math.isfinite(value) or value < 0 or (value == 0 and f.name not in self.may_be_zero):
                raise ConfigError(f"{f.name} should be a positive number, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRamp(_Checked):
    """`--rampup-batch-size START INCREMENT SAMPLES`: the global batch grows in steps, as Megatron does it."""

    start: int  # Samples of the first global batch
    increment: int  # Samples by which it grows at a time
    samples: int  # Samples over which it grows to the full batch, all stages equally long


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum(_Checked):
    """SLW, in DeepSpeed's words: a curriculum of the metric `seqlen`."""

    may_be_zero = frozenset(["total_steps"])

    min_difficulty: int | None = None  # Tokens per sample at the first step
    max_difficulty: int | None = None  # Tokens per sample at the end
    difficulty_step: int | None = None  # Lengths are multiples of this
    schedule: str | None = None  # fixed_linear, fixed_root, fixed_discrete or custom
    total_steps: int | None = None  # T of fixed_linear and fixed_root: steps from the first length to the last
    difficulties: tuple[int, ...] = ()  # Lengths of fixed_discrete
    max_steps: tuple[int, ...] = ()  # The last step of each of these lengths but the last one
    old_block: bool = False  # Whether it is the JSON's top-level `curriculum_learning`, which not every DeepSpeed takes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedJson(_Checked):
    """What the DeepSpeed JSON says that the trainer's options say as well, or that they can't say."""

    may_be_zero = frozenset(["gradient_clipping", "zero_stage", "loss_scale", "initial_scale_power"])

    train_batch_size: int | None = None  # Samples per optimizer step
    micro_batch_size: int | None = None  # `train_micro_batch_size_per_gpu`, samples
    gradient_clipping: float | None = None
    fp16: bool | None = None
    bf16: bool | None = None
    loss_scale: float | None = None  # 0 is dynamic, anything else is held for the whole run
    initial_scale_power: int | None = None  # The first loss scale is 2 to this power
    zero_stage: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts(_Checked, OptimizerSettings):
    """A run as its job script, its command line or its log describes it. All of it may be left out."""

    may_be_zero = frozenset(
        [
            *["train_iters", "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_tokens", "lr_warmup_fraction"],
            *["lr", "min_lr", "clip_grad", *(f.name for f in fields(OptimizerSettings))],
            *["consumed_samples", "save_interval", "eval_interval", "exit_interval", "node_failures_per_day"],
        ]
    )

    hidden_size: int | None = None  # h, the width of the model
    ffn_hidden_size: int | None = None  # Width inside the FFN; where it is None, Megatron takes 4 x hidden
    gated_ffn: bool | None = None  # swiglu, geglu and their like: an FFN with three matrices
    num_layers: int | None = None
    num_attention_heads: int | None = None
    kv_channels: int | None = None  # Width of one head; None where it is hidden / heads
    num_query_groups: int | None = None  # Heads of keys and values, where they are fewer than those of queries (GQA)
    num_experts: int | None = None  # Experts in each FFN; 1 is an FFN
    seq_length: int | None = None  # Full length, tokens per sample
    max_position_embeddings: int | None = None  # Positions that the model can tell apart
    learned_positions: bool | None = None  # Whether positions are an embedding: not so with rotary ones and ALiBi
    vocab_size: int | None = None  # Tokens that the tokenizer knows
    padded_vocab_size: int | None = None  # Rows of the embedding, where they are said
    make_vocab_size_divisible_by: int | None = None  # Megatron pads the vocabulary to multiples of this x the TP size
    tied_embeddings: bool | None = None  # Whether the output takes the embedding's weights
    embed_layernorm: bool | None = None  # A LayerNorm right after the embedding
    init_method_std: float | None = None  # Standard deviation of the initial weights, before it is scaled with depth
    declared_parameters: float | None = None  # How many parameters the run says that it has, as in the name tr8-104B
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None  # Ranks that share a sample's tokens; DeepSpeed's sequence parallelism
    pp_partition_method: str | None = None  # How DeepSpeed cuts the layers into stages, as `type:transformer|embedding`
    world_size: int | None = None  # Ranks: nodes x GPUs per node
    gpus_per_node: int | None = None
    micro_batch_size: int | None = None  # Samples of one replica in one pass
    global_batch_size: int | None = None  # Samples of an optimizer step, over all replicas and passes
    rampup_batch_size: BatchRamp | None = None
    consumed_samples: int | None = None  # Samples that were consumed before this start; None: from the beginning
    train_samples: int | None = None
    train_iters: int | None = None
    train_tokens: int | None = None
    lr_decay_samples: int | None = None
    lr_decay_iters: int | None = None
    lr_decay_tokens: int | None = None
    lr_warmup_samples: int | None = None
    lr_warmup_iters: int | None = None
    lr_warmup_tokens: int | None = None
    lr_warmup_fraction: float | None = None  # The warmup as a share of the decay
    lr: float | None = None  # Peak
    min_lr: float | None = None
    lr_scheduler: LrScheduler | None = None  # None: the options do not tell which of them the parser has
    clip_grad: float | None = None  # L2 norm to which the gradient is clipped; 0 is none
    precision: Literal["fp32", "fp16", "bf16"] | None = None
    initial_loss_scale: float | None = None  # Where a dynamic loss scale begins; of fp16
    static_loss_scale: float | None = None  # Held for the whole run; of fp16. None is a dynamic one
    curriculum: Curriculum | None = None  # SLW, where it is switched on
    deepspeed: DeepSpeedJson | None = None
    save_interval: int | None = None  # Optimizer steps between two checkpoints; 0 is never
    eval_interval: int | None = None  # Optimizer steps between two validations; 0 is never
    exit_interval: int | None = None  # Optimizer steps after which the trainer ends by itself
    exit_duration_min: float | None = None  # Minutes after which the trainer saves and ends by itself
    time_limit_min: float | None = None  # Minutes after which Slurm ends the job
    step_time_s: float | None = None  # Seconds of an optimizer step at full batch
    save_time_s: float | None = None  # Seconds for which a save holds the training up
    node_failures_per_day: float | None = None  # Of all the run's nodes together


_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4})(?:([.p])(\d+))?([MBTmbt])(\d(?![0-9]))?(?![A-Za-z0-9])(?!-?tok)")
_POWERS = {"m": 1e6, "b": 1e9, "t": 1e12}
_TIME = re.compile(r"(?:(?P<days>\d{1,9})-)?(?P<rest>\d{1,9}(?::\d{1,9}){0,2})")


def whole(text: str) -> int:
    """A whole number above 0, as 216_320. ValueError for anything else."""
    if (value := int(text)) <= 0:
        raise ValueError(text)
    return value


def number(text: str) -> float:
    """A number that is not negative, nan or infinite. ValueError for anything else."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def declared_size(text: str) -> float:
    """Parameters, as 104B, 1.3B, 1B3, 760M or a plain number. ConfigError for anything else."""
    found = _SIZE.fullmatch(text)
    try:
        return _size(found) if found is not None else number(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a number of parameters, as 104B or 1.3e9") from error


def declared_parameters(name: str) -> float | None:
    """The size in a run's name, as in tr8-104B, tr11f-6B3-ml and gpt-1.3B-pile; None where there is none, or several.

    300B-tokens is no size.
    """
    found = {_size(match) for match in _SIZE.finditer(name.replace("_", "-"))}
    return found.pop() if len(found) == 1 else None


def _size(found: re.Match[str]) -> float:
    before, _, behind, letter, after = found.groups()
    return float(f"{before}.{behind or after or 0}") * _POWERS[letter.lower()]


def minutes(text: str) -> float | None:
    """Slurm's time limit: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in found["rest"].split(":")]
    if found["days"] is None:  # from the right: two parts are minutes and seconds, one is minutes
        parts = [0] * (len(parts) < 3) + parts
    hours, mins, seconds = (*parts, 0, 0)[:3]
    return int(found["days"] or 0) * 1440 + hours * 60 + mins + seconds / 60
