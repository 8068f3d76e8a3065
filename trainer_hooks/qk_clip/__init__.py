"""qk_clip and lr_factor_of of overrides.json, in any training whose attention layers are named: ATTACH.md.

In: the layers, their largest logits of a step, the optimizer. Out: scaled query and key weights, updates with a factor.
"""

from trainer_hooks.qk_clip.attention import Attention, Rows
from trainer_hooks.qk_clip.logits import largest_logits
from trainer_hooks.qk_clip.override import AttentionOverride

__all__ = ["Attention", "AttentionOverride", "Rows", "largest_logits"]
