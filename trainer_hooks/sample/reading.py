"""The readings of one step: of one rank, and reduced over all ranks.

A rank's reading travels as two short rows of float64: one is summed over all ranks, one is reduced to its maxima. Their
length is the same for every model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["RankReading", "Reading", "loss_scale"]

_NOTHING = -math.inf  # the part of a rank that has no reading, where a maximum is taken
_MEANS = ("loss", "grad_norm", "local_grad_norm")  # fields of RankReading that are averaged over the ranks
_ADDED = (*_MEANS, "variance_l1", "grad_squares", "update_squares", "momentum_squares", "parameter_squares", "elements")
"""Fields in the summed row, in its order: of each the number of ranks that have it, then the sum (or mean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """One rank's readings of one step. "Share": each element counts 1 / (ranks that hold the same element)."""

    global_step: int
    failed: bool = False
    """Whether the rank could not read; the other fields then have no meaning."""

    loss: float = 0.0
    """Mean over this rank's micro-batches."""

    variance_l1: float | None = None
    """Sum of sqrt(v) over this rank's elements, each times its share; None without a state."""

    variance_top: float = _NOTHING
    """max of v (not of its root) over this rank's elements."""

    grad_squares: float | None = None
    """Sum of squares over this rank's gradients, each times its share; None where DeepSpeed has measured the norm."""

    grad_norm: float | None = None
    """The global norm, where DeepSpeed has measured it; the same on every rank."""

    local_grad_norm: float | None = None
    """Norm of this rank's gradients before they are averaged; None where that was not measured."""

    update_squares: float | None = None
    """Sum of squares of the update before lr, each times its share; None where the moments were not measured."""

    momentum_squares: float | None = None
    parameter_squares: float | None = None
    elements: float | None = None
    """Number of elements that the three sums of squares are of, each times its share."""

    def sums(self, world: int) -> list[float]:
        """The row to be summed over `world` ranks."""
        row = [float(self.global_step), float(self.failed), float(math.isnan(self.variance_top))]  # a MAX may lose nan
        for name in _ADDED:
            value = getattr(self, name)
            row += [float(value is not None), (value or 0.0) * (1.0 / world if name in _MEANS else 1.0)]
        return row

    def tops(self) -> list[float]:
        """The row of which the maxima are taken, position by position."""
        if self.failed:
            return [_NOTHING] * 5
        local = self.local_grad_norm
        norms = [_NOTHING, _NOTHING] if local is None else [local, -local]
        return [self.variance_top, self.loss, -self.loss, *norms]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The readings of all ranks of one step, under the names of Sample's fields."""

    loss: float
    """Mean over micro-batches and data-parallel ranks; nan where one of them is."""

    loss_spread: float | None
    adam_variance_l1: float | None
    adam_variance_max: float | None
    grad_norm: float | None
    grad_norm_spread: float | None
    update_norm: float | None
    momentum_l2: float | None
    param_norm: float | None

    @classmethod
    def of(cls, sums: Sequence[float], tops: Sequence[float], *, global_step: int, world: int) -> Reading:
        """From the two rows over all ranks. RuntimeError where a rank could not read, or read another step."""
        steps, failed, nans, *added = sums
        if steps != float(global_step) * world:
            raise RuntimeError(f"the ranks' readings of step {global_step} and of other steps came together")
        if failed:
            raise RuntimeError(f"{failed:.0f} rank(s) could not read step {global_step}")
        ranks, total = (dict(zip(_ADDED, added[first::2], strict=True)) for first in (0, 1))
        largest_v, largest_loss, least_loss, largest_norm, least_norm = tops
        with_state, locally = ranks["variance_l1"] == world, ranks["local_grad_norm"]
        measured = ranks["elements"] == world and total["elements"] > 0
        given_norm = total["grad_norm"] if ranks["grad_norm"] == world else None
        return cls(
            loss=total["loss"],
            loss_spread=_spread(largest_loss, least_loss, total["loss"]) if world > 1 else None,
            adam_variance_l1=total["variance_l1"] if with_state else None,
            adam_variance_max=_root(math.nan if nans else largest_v) if with_state else None,
            grad_norm=_root(total["grad_squares"]) if ranks["grad_squares"] else given_norm,
            grad_norm_spread=(
                _spread(largest_norm, least_norm, total["local_grad_norm"]) if locally == world > 1 else None
            ),
            update_norm=_root(total["update_squares"] / total["elements"]) if measured else None,
            momentum_l2=_root(total["momentum_squares"]) if measured else None,
            param_norm=_root(total["parameter_squares"]) if measured else None,
        )


def _spread(largest: float, minus_least: float, mean: float) -> float:
    """Over the ranks; nan where a rank's reading is, which a MAX may have lost and the mean has not."""
    return math.nan if math.isnan(mean) else largest + minus_least


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan


def loss_scale(optimizer: Any) -> float | None:
    """The loss scale of fp16 training; None where there is none."""
    for name in ("cur_scale", "loss_scale"):
        scale = getattr(optimizer, name, None)
        if isinstance(scale, int | float) and scale > 0 and hasattr(optimizer, "optimizer"):
            return float(scale) if getattr(optimizer, "dynamic_loss_scale", True) or scale != 1 else None
    return None
