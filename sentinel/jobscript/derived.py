"""What follows from the facts: parameters, replicas, optimizer steps. None where a fact is missing for it."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

from sentinel.jobscript.facts import BatchRamp, Facts
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import BILLION, BatchSizeSchedule, FixedDiscrete, FixedLinear, SeqlenSchedule, Track

__all__ = [
    "BILLION",
    "ParameterCount",
    "batch_schedule",
    "curriculum_schedule",
    "embedding_rows",
    "parameter_count",
    "replicas",
    "scale",
    "steps_of_samples",
    "steps_of_tokens",
    "total_steps",
    "track_of",
    "warmup_steps",
]

_LARGEST_VOCABULARY = 262_144
"""Rows of the largest embeddings in use; bounds the count where the vocabulary is not known."""

_MOST_STAGES = 100_000
"""A batch ramp of more stages than this is not followed."""


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Bounds, which are one number where the vocabulary is known."""

    least: float
    most: float


def embedding_rows(facts: Facts) -> int | None:
    """The vocabulary as padded: to the next multiple of make_vocab_size_divisible_by x tensor parallel size."""
    if facts.padded_vocab_size is not None or facts.vocab_size is None:
        return facts.padded_vocab_size
    multiple = (facts.make_vocab_size_divisible_by or 1) * (facts.tensor_model_parallel_size or 1)
    return -(-facts.vocab_size // multiple) * multiple


def parameter_count(facts: Facts) -> ParameterCount | None:
    """n(12h^2 + 13h) + vh + sh + 2h, with what differs from GPT-2 counted as it is.

    An FFN of width f has 2hf + f + h parameters; a gated one 3hf, and no biases in the rest either (LLaMA). Keys and
    values of fewer heads have a smaller matrix; positions count where they are learned, the output where it has
    weights of its own. With f = 4h this is the formula. Experts are not counted: None.

    Source: tr8-104B-wide README, "Memory usage"; Narayanan et al. 2021, equation 2 (arXiv:2104.04473).
    """
    h, layers = facts.hidden_size, facts.num_layers
    if h is None or layers is None or (facts.num_experts or 1) > 1:
        return None
    heads = facts.num_attention_heads
    head = facts.kv_channels or (h / heads if heads else None)
    queries = heads * head if heads and head else h
    keys = facts.num_query_groups * head if facts.num_query_groups and head else queries
    if facts.gated_ffn:
        f = facts.ffn_hidden_size or 8 * h / 3
        layer = 2 * h * queries + 2 * h * keys + 3 * h * f + 2 * h
    else:
        f = facts.ffn_hidden_size or 4 * h
        layer = 2 * h * queries + 2 * h * keys + 2 * h * f + (queries + 2 * keys + f + 6 * h)
    positions = facts.max_position_embeddings or facts.seq_length or 0
    last_norm = h if facts.gated_ffn else 2 * h
    body = layers * layer + (0 if facts.learned_positions is False else positions * h) + last_norm
    rows = embedding_rows(facts)
    copies = 2 if facts.tied_embeddings is False else 1
    if rows is not None:
        return ParameterCount(body + copies * rows * h, body + copies * rows * h)
    return ParameterCount(body, body + copies * _LARGEST_VOCABULARY * h)


def scale(facts: Facts) -> float | None:
    """How large the run is, for rules that depend on it: as declared, else as counted."""
    count = parameter_count(facts)
    return facts.declared_parameters or (count.least if count else None)


def replicas(facts: Facts) -> int | None:
    """Data-parallel replicas: world size over tensor x pipeline x context parallel size."""
    if facts.world_size is None or facts.tensor_model_parallel_size is None:
        return None
    if facts.pipeline_model_parallel_size is None:
        return None
    one = facts.tensor_model_parallel_size * facts.pipeline_model_parallel_size * (facts.context_parallel_size or 1)
    return facts.world_size // one or None


def steps_of_samples(facts: Facts, samples: float) -> float | None:
    """Optimizer steps for so many samples, from the run's beginning, with the batch ramp.

    Source: Megatron-LM, megatron/microbatches.py: stages of samples / increments each.
    """
    full, ramp = facts.global_batch_size, facts.rampup_batch_size
    if full is None:
        return None
    if ramp is None or ramp.start >= full:
        return samples / full
    stages = _stages(ramp, full)
    if stages > _MOST_STAGES:
        return None
    steps, left = 0.0, float(samples)
    for stage in range(stages):
        taken = min(left, ramp.samples / stages)
        steps += taken / (ramp.start + stage * ramp.increment)
        left -= taken
        if left <= 0:
            return steps
    return steps + left / full


def _stages(ramp: BatchRamp, full: int) -> int:
    return max(1, (full - ramp.start) // ramp.increment)


def steps_of_tokens(facts: Facts, tokens: float) -> float | None:
    """Optimizer steps for so many tokens: with SLW the length rises linearly, and tokens with the square of the steps.

    None for a schedule other than fixed_linear, and for SLW together with a batch ramp.
    """
    full, slw = facts.seq_length, facts.curriculum
    if full is None:
        return None
    if slw is None:
        return steps_of_samples(facts, tokens / full)
    if facts.global_batch_size is None or facts.rampup_batch_size is not None or slw.schedule != "fixed_linear":
        return None
    if slw.min_difficulty is None or not slw.total_steps:
        return None
    start, end, steps = slw.min_difficulty, max(full, slw.min_difficulty), slw.total_steps
    each = tokens / facts.global_batch_size
    while_short = steps * (start + end) / 2
    if each >= while_short:
        return steps + (each - while_short) / end
    slope = (end - start) / steps
    return each / start if slope == 0 else (math.sqrt(start * start + 2 * slope * each) - start) / slope


def total_steps(facts: Facts) -> float | None:
    """Optimizer steps of the run, by whichever of its ends comes first."""
    ends = [
        _steps(facts, iters=facts.train_iters or None),
        _steps(facts, samples=facts.train_samples),
        _steps(facts, tokens=facts.train_tokens),
    ]
    return min((end for end in ends if end is not None), default=None)


def warmup_steps(facts: Facts) -> float | None:
    """Optimizer steps of the LR warmup; 0 where it has none."""
    if facts.lr_warmup_fraction:
        decay = _steps(facts, iters=facts.lr_decay_iters, samples=facts.lr_decay_samples, tokens=facts.lr_decay_tokens)
        decay = total_steps(facts) if decay is None else decay
        return None if decay is None else facts.lr_warmup_fraction * decay
    return _steps(facts, iters=facts.lr_warmup_iters, samples=facts.lr_warmup_samples, tokens=facts.lr_warmup_tokens)


def _steps(
    facts: Facts, *, iters: int | None = None, samples: int | None = None, tokens: int | None = None
) -> float | None:
    if iters is not None:
        return float(iters)
    if samples is not None:
        return steps_of_samples(facts, samples) if samples else 0.0
    if tokens is not None:
        return steps_of_tokens(facts, tokens) if tokens else 0.0
    return None


def track_of(facts: Facts) -> Track | None:
    """The run's batch and sequence length, step by step; None where the options do not show them."""
    batch = batch_schedule(facts)
    if batch is None or facts.seq_length is None:
        return None
    return Track(full=facts.seq_length, batch=batch, seqlen=curriculum_schedule(facts))


def batch_schedule(facts: Facts) -> BatchSizeSchedule | None:
    """`--rampup-batch-size` and the global batch; None where they are not shown or do not fit."""
    full, ramp = facts.global_batch_size, facts.rampup_batch_size
    if full is None:
        return None
    if ramp is None or ramp.start >= full:
        return BatchSizeSchedule(start=full, full=full, increment=1, ramp_samples=0)
    with contextlib.suppress(ConfigError):
        return BatchSizeSchedule(start=ramp.start, full=full, increment=ramp.increment, ramp_samples=ramp.samples)
    return None


def curriculum_schedule(facts: Facts) -> SeqlenSchedule | None:
    """The lengths of the script's own curriculum, counted from step 0; None where it has none that can be followed."""
    told = facts.curriculum
    if told is None or told.min_difficulty is None or told.max_difficulty is None:
        return None
    start, full, multiple = told.min_difficulty, told.max_difficulty, told.difficulty_step or 8
    with contextlib.suppress(ConfigError):
        match told.schedule:
            case "fixed_linear" if told.total_steps is not None:
                return FixedLinear(start=start, full=full, multiple=multiple, total_steps=told.total_steps)
            case "fixed_discrete":
                stages, ends = told.difficulties, told.max_steps
                return FixedDiscrete(start=start, full=full, difficulties=stages, max_steps=ends)
    return None
