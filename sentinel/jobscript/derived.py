"""What follows from the facts: parameters, replicas, optimizer steps. None where a fact is missing for it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import lru_cache

from sentinel.jobscript.facts import ScriptFacts
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import BatchSizeSchedule, FixedDiscrete, FixedLinear, Position, SeqlenSchedule, Track

_LARGEST_VOCABULARY = 262_144
"""Rows of the largest embeddings in use; bounds the count where the vocabulary is not known."""


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Bounds, which are one number where the vocabulary is known."""

    least: float
    most: float


def embedding_rows(facts: ScriptFacts) -> int | None:
    """The vocabulary as padded: to the next multiple of make_vocab_size_divisible_by x tensor parallel size."""
    if facts.padded_vocab_size is not None or facts.vocab_size is None:
        return facts.padded_vocab_size
    multiple = (facts.make_vocab_size_divisible_by or 1) * (facts.tensor_model_parallel_size or 1)
    return -(-facts.vocab_size // multiple) * multiple


def parameter_count(facts: ScriptFacts) -> ParameterCount | None:
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


def scale(facts: ScriptFacts) -> float | None:
    """How large the run is, for rules that depend on it: as declared, else as counted."""
    count = parameter_count(facts)
    return facts.declared_parameters or (count.least if count else None)


def replicas(facts: ScriptFacts) -> int | None:
    """Data-parallel replicas: world size over tensor x pipeline x context parallel size."""
    if facts.world_size is None or facts.tensor_model_parallel_size is None:
        return None
    if facts.pipeline_model_parallel_size is None:
        return None
    one = facts.tensor_model_parallel_size * facts.pipeline_model_parallel_size * (facts.context_parallel_size or 1)
    return facts.world_size // one or None


@lru_cache(maxsize=64)  # the rules ask for the same few again and again
def steps_of(facts: ScriptFacts, unit: str, count: int) -> float | None:
    """Optimizer steps, the last one in part, for so many samples or tokens along the batch ramp and SLW.

    None where the batch is not known, or where a curriculum is there that can't be followed and tokens are counted.
    """
    batch, seqlen, by_tokens = batch_schedule(facts), curriculum_schedule(facts), unit == "tokens"
    if batch is None or (by_tokens and (facts.seq_length is None or (facts.curriculum and seqlen is None))):
        return None
    track = Track(full=facts.seq_length or 1, batch=batch, seqlen=seqlen if by_tokens else None)
    with contextlib.suppress(ConfigError):
        end = track.reach(Position(), unit, count)
        before = track.reach(Position(), "steps", max(0, end.step - 1))
        begin, full = before.counted(unit), end.counted(unit)
        return before.step + (count - begin) / (full - begin) if full > begin else 0.0
    return None


def total_steps(facts: ScriptFacts) -> float | None:
    """Optimizer steps of the run, by whichever of its ends comes first."""
    ends = [
        facts.train_iters or None,
        None if facts.train_samples is None else steps_of(facts, "samples", facts.train_samples),
        None if facts.train_tokens is None else steps_of(facts, "tokens", facts.train_tokens),
    ]
    return min((end for end in ends if end is not None), default=None)


def warmup_steps(facts: ScriptFacts) -> float | None:
    """Optimizer steps of the LR warmup; 0 where it has none."""
    if facts.lr_warmup_fraction:
        decay = _first(facts, facts.lr_decay_iters, facts.lr_decay_samples, facts.lr_decay_tokens)
        decay = total_steps(facts) if decay is None else decay
        return None if decay is None else facts.lr_warmup_fraction * decay
    return _first(facts, facts.lr_warmup_iters, facts.lr_warmup_samples, facts.lr_warmup_tokens)


def _first(facts: ScriptFacts, iters: int | None, samples: int | None, tokens: int | None) -> float | None:
    """The steps of whichever of the three is given."""
    if iters is not None:
        return iters
    given = {"samples": samples, "tokens": tokens}
    return next((steps_of(facts, unit, count) for unit, count in given.items() if count is not None), None)


def track_of(facts: ScriptFacts) -> Track | None:
    """The run's batch and sequence length, step by step; None where the options do not show them."""
    batch = batch_schedule(facts)
    if batch is None or facts.seq_length is None:
        return None
    return Track(full=facts.seq_length, batch=batch, seqlen=curriculum_schedule(facts))


def batch_schedule(facts: ScriptFacts) -> BatchSizeSchedule | None:
    """`--rampup-batch-size` and the global batch; None where they are not shown or do not fit."""
    full, ramp = facts.global_batch_size, facts.rampup_batch_size
    if full is None:
        return None
    if ramp is None or ramp.start >= full:
        return BatchSizeSchedule(start=full, full=full, increment=1, ramp_samples=0)
    with contextlib.suppress(ConfigError):
        return BatchSizeSchedule(start=ramp.start, full=full, increment=ramp.increment, ramp_samples=ramp.samples)
    return None


def curriculum_schedule(facts: ScriptFacts) -> SeqlenSchedule | None:
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
