"""The model's shape: what tr8 had wrong for five experiments, and what else a typed number can spoil."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sentinel.jobscript.derived import ParameterCount, embedding_rows
from sentinel.jobscript.facts import ScriptFacts
from sentinel.lint.finding import Remark, big, error, note, warning
from sentinel.vocabulary.pacing import BILLION

_SHAPE = (
    *["hidden_size", "ffn_hidden_size", "num_layers", "num_attention_heads", "kv_channels", "num_query_groups"],
    *["num_experts", "gated_ffn", "padded_vocab_size", "tied_embeddings", "embed_layernorm", "learned_positions"],
)
_TOPOLOGY = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def ffn_size(facts: ScriptFacts, h: int, f: int) -> Iterator[Remark]:
    """FFN width against 4 x hidden; 8/3 x hidden where it is gated (swiglu), which has three matrices.

    Without a gate: off by a factor of 1.5 or more is an error, off at all a warning. Gated ones differ between good
    models, from 2.6 x (LLaMA) to 3.5 x (LLaMA 2 70B): outside of it a note, off by more than a factor of 2 a warning.

    Source: tr8-104B chronicle, experiment 6; Shazeer 2020 (arXiv:2002.05202) for 8/3.
    """
    if facts.gated_ffn:
        ratio, right = f / h, round(8 * h / 3)
        said = f"ffn_hidden_size {f} is {ratio:.3g} x hidden_size {h}; for a gated FFN about {right} (8/3 x) is usual"
        if not 4 / 3 <= ratio <= 16 / 3:
            yield warning(f"{said}: it may have been left from another shape")
        elif not 2.6 <= ratio <= 3.6:
            yield note(f"{said}, up to 3.5 x with fewer heads of keys and values")
        return
    if f == 4 * h:
        return
    belongs = f", and 4 x {f // 4}" if f % 4 == 0 else ""
    said = (
        f"ffn_hidden_size {f} is {f / h:.3g} x hidden_size {h}{belongs}: it should be {4 * h}. "
        "Leave --ffn-hidden-size out, and Megatron takes 4 x hidden"
    )
    ratio = f / (4 * h)
    may_be_gated = facts.gated_ffn is None and 4 / 3 <= f / h <= 4
    yield error(said) if max(ratio, 1 / ratio) >= 1.5 and not may_be_gated else warning(said)


def width_depth_ratio(h: int, layers: int, size: float | None = None) -> Iterator[Remark]:
    """Width over depth, h / n: 150 to 200 is usual at 100B parameters and more; tr8 began with 512.

    Good models of 10B and more lie between 100 (LLaMA 65B) and 205 (tr11-176B): outside of it a note, below 75 or
    above 300 a warning. Smaller models are deeper for their width, so there only more than 300 is one.

    Source: tr8-104B chronicle, experiments 4 and 7; Narayanan et al. 2021, Table 1 (arXiv:2104.04473).
    """
    ratio, large = h / layers, (size or 0) >= 10 * BILLION
    usual = f"for {h} wide, 150 to 200 means {math.ceil(h / 200)} to {max(1, h // 150)} layers"
    if ratio > 300:
        yield warning(
            f"hidden_size {h} / {layers} layers is {ratio:.0f}: a wide and shallow model learns little; {usual}"
        )
    elif large and ratio < 75:
        yield warning(f"hidden_size {h} / {layers} layers is {ratio:.0f}: narrow and deep for its size; {usual}")
    elif large and not 100 <= ratio <= 210:
        yield note(f"hidden_size {h} / {layers} layers is {ratio:.0f}; {usual}")


def heads_divide_hidden(facts: ScriptFacts) -> Iterator[Remark]:
    """hidden % heads = 0, unless a head's width is given on its own; and heads % (heads of keys and values) = 0.

    Source: tr8-104B chronicle, experiment 7; Megatron-LM, megatron/arguments.py.
    """
    h, heads, groups = facts.hidden_size, facts.num_attention_heads, facts.num_query_groups
    if heads is not None and groups is not None and heads % groups:
        yield error(f"{heads} attention heads can't share {groups} heads of keys and values: it should divide them")
    if h is None or heads is None or facts.kv_channels is not None or h % heads == 0:
        return
    lower, upper = h // heads * heads, -(-h // heads) * heads
    fits = f"{lower} or {upper}" if lower else f"{upper}"
    yield error(f"hidden_size {h} is not a multiple of {heads} attention heads: with those it should be {fits}")


def head_size(facts: ScriptFacts) -> Iterator[Remark]:
    """Width of one head, h / heads: a multiple of 8, or half precision loses the tensor cores.

    tr8's later shape had 11600 / 80 = 145. Kernels for attention ask for it, too.

    Source: NVIDIA, Deep Learning Performance Guide, "Tensor Core Requirements".
    """
    h, heads = facts.hidden_size, facts.num_attention_heads
    if heads is None or (h is None and facts.kv_channels is None):
        return
    if facts.kv_channels is None and (h or 0) % heads:
        return  # heads_divide_hidden has said it
    size = facts.kv_channels or (h or 0) // heads
    if size % 8:
        yield warning(
            f"a head is {size} wide, which tensor cores don't take: choose heads that make it 64, 80, 96 or 128"
        )


def parameters_as_declared(facts: ScriptFacts, declared: float, count: ParameterCount) -> Iterator[Remark]:
    """Parameters by formula, n(12h^2 + 13h) + vh + sh + 2h, against the size that the run has in its name.

    Off by more than a quarter is an error, by more than a tenth a warning. tr8-104B had 57B for five experiments.

    Source: tr8-104B chronicle, experiment 6; tr8-104B-wide README, "Memory usage".
    """
    nearest = min(max(declared, count.least), count.most)
    off = max(nearest / declared, declared / nearest)
    has = big(count.least)
    if count.least != count.most:
        has = f"{has} to {big(count.most)}"
    shape = f"{facts.num_layers} layers x {facts.hidden_size}"
    if facts.ffn_hidden_size is not None:
        shape = f"{shape}, FFN {facts.ffn_hidden_size}"
    said = f"{shape} makes {has} parameters, and the run calls itself {big(declared)}: check the shape, or the name"
    if off > 1.25:
        yield error(said)
    elif off > 1.1:
        yield warning(said)


def padded_vocabulary(facts: ScriptFacts) -> Iterator[Remark]:
    """Rows of the embedding: a multiple of the tensor parallel size, and of 128 x that size for the tensor cores.

    Source: Megatron-LM, megatron/tokenizer/tokenizer.py; tr11-176B (250880 = 490 x 128 x 4).
    """
    rows, ranks = embedding_rows(facts), facts.tensor_model_parallel_size or 1
    if rows is None:
        return
    fits = -(-rows // (128 * ranks)) * 128 * ranks
    if rows % ranks:
        yield error(f"{rows} rows of the embedding can't be split over {ranks} tensor parallel ranks: {fits} can")
    elif rows % (128 * ranks):
        each = f" x {ranks} tensor parallel ranks" if ranks > 1 else ""
        yield warning(
            f"{rows} rows of the embedding are not a multiple of 128{each}: pad to {fits} for the tensor cores"
        )


def enough_positions(max_position_embeddings: int, seq_length: int) -> Iterator[Remark]:
    """max_position_embeddings of at least seq_length.

    Source: Megatron-LM, megatron/arguments.py.
    """
    if max_position_embeddings < seq_length:
        few = f"{max_position_embeddings} positions are too few for sequences of {seq_length} tokens"
        yield error(f"{few}: it should be {seq_length}")


def initial_weights(h: int, std: float, size: float) -> Iterator[Remark]:
    """init_method_std against sqrt(2 / 5h), for 1B parameters and more: above 3 x a warning, above 2 x a note.

    Megatron's default of 0.02 is 3.4 x it at 11600 wide. What changed tr8 was 0.006 there.

    Source: BigScience lessons learned; tr8-104B chronicle, experiment 11; Nguyen & Salazar 2019 (arXiv:1910.05895).
    """
    if size < BILLION:
        return
    right = math.sqrt(2 / (5 * h))
    said = f"init_method_std {std:g} is {std / right:.2g} x sqrt(2 / (5 x {h})): about {right:.2g} is stable"
    if std > 3 * right:
        yield warning(f"{said}; it can only be set before the first step")
    elif std > 2 * right:
        yield note(said)


def embedding_layernorm(embed_layernorm: bool, precision: str, size: float) -> Iterator[Remark]:
    """fp16 at 100B parameters and more without a LayerNorm after the embedding.

    With it tr8b trained well up to iteration 14k. With bf16 it is not needed, and costs zero-shot accuracy.

    Source: BigScience lessons learned; Le Scao et al. 2022, section 4.3 (arXiv:2210.15424).
    """
    if not embed_layernorm and precision == "fp16" and size >= 100 * BILLION:
        yield warning(
            f"{big(size)} parameters in fp16 without --embed-layernorm: add it before the first step (it has weights), "
            "or train in bf16"
        )


def same_shape(before: ScriptFacts, facts: ScriptFacts, resume_step: int) -> Iterator[Remark]:
    """The model's shape, which a checkpoint has and no option changes; the layout of its ranks, where it does not move.

    Source: tr8-104B chronicle, experiments 6 and 7 (both from scratch); tr11-176B README, "Checkpoint reshaping".
    """
    if resume_step == 0:
        return
    for name in (*_SHAPE, *_TOPOLOGY):
        was, would_be = getattr(before, name), getattr(facts, name)
        if was is None or would_be is None or was == would_be:
            continue
        said = f"{name} was {was} and would be {would_be}"
        if name in _SHAPE:
            yield error(f"{said}: the checkpoint of step {resume_step} does not fit; such a change starts from scratch")
        else:
            yield warning(
                f"{said}: the checkpoint of step {resume_step} has to be reshaped first (universal checkpoint)"
            )
