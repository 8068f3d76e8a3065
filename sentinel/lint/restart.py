"""What can't be changed from one start of a run to the next, or does nothing there."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.jobscript.facts import Curriculum, Facts
from sentinel.lint.finding import Remark, error, warning

_SHAPE = (
    *["hidden_size", "ffn_hidden_size", "num_layers", "num_attention_heads", "kv_channels", "num_query_groups"],
    *["num_experts", "gated_ffn", "padded_vocab_size", "tied_embeddings", "embed_layernorm", "learned_positions"],
)
_TOPOLOGY = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def same_shape(before: Facts, facts: Facts, resume_step: int) -> Iterator[Remark]:
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


def slw_still_to_come(before: Facts, slw: Curriculum, resume_step: int) -> Iterator[Remark]:
    """SLW switched on at a restart: `fixed_linear` and `fixed_root` count from step 0, not from the restart.

    Source: DeepSpeed, deepspeed/runtime/data_pipeline/curriculum_scheduler.py.
    """
    if before.curriculum == slw or resume_step == 0:
        return
    if slw.schedule not in ("fixed_linear", "fixed_root") or slw.total_steps is None:
        return
    if slw.total_steps <= resume_step:
        yield error(
            f"{slw.schedule} counts from step 0: after {resume_step} steps its {slw.total_steps} are over, and the "
            "length is full at once; write fixed_discrete with absolute steps"
        )
    else:
        yield warning(
            f"{slw.schedule} counts from step 0: at step {resume_step} {resume_step / slw.total_steps:.0%} are over; "
            "to begin with short sequences, write fixed_discrete with absolute steps"
        )
