"""qk_clip and lr_factor_of of overrides.json, for GPT."""

from __future__ import annotations

from functools import partial
from typing import Any

from sentinel.vocabulary.overrides import TrainingSettings
from trainer_hooks.gpt.model import GPT, Block
from trainer_hooks.qk_clip import Attention, AttentionOverride


def override_attention(engine: Any, model: GPT, standing: TrainingSettings) -> AttentionOverride | None:
    """From now on each step is changed as `standing` says; None where it changes nothing here. After the checkpoint is
    loaded. OverridesError where it can't be done."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for block in blocks:  # an earlier attempt's, of the same process
        block.heads_seen = None
    if not standing.qk_clip and not standing.lr_factor_of:
        return None
    layers = [Attention.fused(block.qkv, block.heads) for block in blocks]
    override = AttentionOverride(
        engine, layers, qk_clip=standing.qk_clip or 0.0, lr_factor_of=standing.lr_factor_of or {}
    )
    for number, block in enumerate(blocks):
        block.heads_seen = partial(override.seen, number)
    return override
