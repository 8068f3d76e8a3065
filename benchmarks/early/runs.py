"""Which runs the early warning is scored on, and the split: by setting, written down before anything was tuned.

Recipes of `recorded/` with new seeds. A setting is a recipe's cause; all its recipes and seeds are in one part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recorded.curves import held_out
from recorded.ill import ILL
from recorded.recipe import Recipe
from recorded.well import WELL

__all__ = ["GROWING", "is_held_out", "recipes"]

# Causes that work for a while before the loss rises. All others act at one step, and nothing before it tells of them.
GROWING = frozenset({"lr_creeping", "lr_too_high", "no_layernorm", "no_warmup", "weight_decay", "fp16_overflow"})
# Recipes whose cause is in force from the first step, or grows: five new seeds each.
_SLOW = (
    *("lr_creep_a", "lr_creep_early", "lr_ramp_early", "no_layernorm_ramp_b", "no_layernorm_ramp", "post_ln_ramp"),
    *("decay_negative_b", "decay_huge_b", "fp16_lr_ramp", "fp16_weights_grow_b"),
)
# One recipe for each way of breaking at one step: a new seed each.
_SUDDEN = (
    *("lr_resume_x30_b", "labels_all_a", "dirty_rank_b", "bit_flip_30_mlp", "v_zeroed_a", "beta1_over_beta2"),
    *("attention_growth_c", "burst_many", "clip_off_a"),
)
# Runs that are well, of at most so many steps: a new seed each.
_WELL_STEPS = 1600


# Warmups that last and do no harm: the hard ones for a sign that looks at a rising learning rate.
_LONG_WARMUP = ("plain_a", "plain_b", "plain_c", "lr_high_but_well_a", "lr_high_but_well_b", "plain_wsd")


def is_held_out(cause: str) -> bool:
    """As of the recorded curves: a third of the causes, by the hash of the name alone."""
    return held_out(cause)


def recipes() -> Iterator[Recipe]:
    """Each new run: a recipe of the recorded curves under a new name, with a new seed."""
    known = {recipe.name: recipe for recipe in (*ILL, *WELL)}
    yield from (_long_warmup(known[name]) for name in _LONG_WARMUP)
    yield from (_again(known[name], seed) for seed in range(1, 6) for name in _SLOW)
    yield from (_again(known[name], 1) for name in _SUDDEN)
    yield from (_again(recipe, 1) for recipe in WELL if recipe.log_interval == 1 and recipe.steps <= _WELL_STEPS)


def _again(recipe: Recipe, seed: int) -> Recipe:
    return replace(recipe, name=f"{recipe.name}-{seed}", seed=recipe.seed + 10_000 * seed)


def _long_warmup(recipe: Recipe) -> Recipe:
    """A third of these causes are held out too: by the hash of what they are called here."""
    slow = replace(recipe, warmup=900, steps=1500, cause=f"none:long_warmup_of_{recipe.name}")
    return replace(slow, name=f"long_warmup_of_{recipe.name}-1", seed=recipe.seed + 10_000)
