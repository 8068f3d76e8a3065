"""qk_clip and lr_factor_of of overrides.json, in any training whose attention layers are named: ATTACH.md."""

from trainer_hooks.qk_clip.attention import Attention, Rows
from trainer_hooks.qk_clip.logits import largest_logits
from trainer_hooks.qk_clip.override import AttentionOverride

__all__ = ["Attention", "AttentionOverride", "Rows", "largest_logits"]
