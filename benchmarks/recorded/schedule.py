"""Learning rate, sequence length and batch size of a step: formulas of the recipe alone."""

from __future__ import annotations

import math

from recorded.recipe import Recipe

__all__ = ["batch", "lr", "seqlen"]


def lr(recipe: Recipe, step: int) -> float:
    """The learning rate of the step, before any act on it."""
    if recipe.decay == "rewarm":
        half = recipe.steps // 2
        within = step if step <= half else step - half
        return recipe.lr * _ramp(within, recipe.warmup) * _cosine(within / half, 0.1)
    return recipe.lr * _ramp(step, recipe.warmup) * _decay(recipe, step)


def _decay(recipe: Recipe, step: int) -> float:
    done = step / recipe.steps
    match recipe.decay:
        case "constant":
            return 1.0
        case "cosine":
            return _cosine(done, 0.1)
        case "linear":
            return 1.0 - done
        case "wsd":
            return min(1.0, (1.0 - done) * 5)
        case "restarts":
            return _cosine(done * 4 % 1.0, 0.05)
        case "early":
            return max(0.0, 1.0 - 3 * done)
        case "creep":
            return float(2.0 ** (step / recipe.creep_steps))
    raise ValueError(f"{recipe.name}: no decay {recipe.decay!r}")


def _ramp(step: int, warmup: int) -> float:
    return min(1.0, step / warmup) if warmup else 1.0


def _cosine(done: float, least: float) -> float:
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def seqlen(recipe: Recipe, step: int) -> int:
    """Tokens per sample in this step."""
    if recipe.slw_steps and step < recipe.slw_steps:
        length = 8 + (recipe.seqlen - 8) * step / recipe.slw_steps
        return max(8, int(length) // 8 * 8)
    return _stair(recipe.lengths, step, recipe.seqlen)


def batch(recipe: Recipe, step: int) -> int:
    """Samples in this step."""
    return _stair(recipe.batches, step, recipe.batch)


def _stair(stairs: tuple[tuple[int, int], ...], step: int, otherwise: int) -> int:
    reached = [value for start, value in stairs if step >= start]
    return reached[-1] if reached else otherwise
