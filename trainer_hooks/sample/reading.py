"""What a step's state holds: read by one rank, summed up over all of them.

A rank's reading travels as two short rows of float64: one that is added over all ranks, one of which the largest is
taken. Their length is the same for every model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["RankReading", "Reading", "loss_scale"]

_NOTHING = -math.inf
"""What a rank that could not read gives where the largest is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Sums over this rank's elements, each times its share: what needs Adam's first moment and the parameters."""

    update_squares: float
    momentum_squares: float
    parameter_squares: float
    elements: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """What one rank read of one step."""

    global_step: int
    failed: bool = False
    """Whether it could not read; then all else is as if it were not there."""

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

    moments: Moments | None = None

    def sums(self, world: int) -> list[float]:
        """The row to be added over `world` ranks."""
        part = 1.0 / world
        moments = self.moments or Moments(update_squares=0, momentum_squares=0, parameter_squares=0, elements=0)
        return [
            float(self.global_step),
            float(self.failed),
            self.loss * part,
            float(self.variance_l1 is not None),
            self.variance_l1 or 0.0,
            float(math.isnan(self.variance_top)),  # a MAX may lose a nan; a SUM does not
            float(self.grad_squares is not None),
            self.grad_squares or 0.0,
            float(self.grad_norm is not None),
            (self.grad_norm or 0.0) * part,
            float(self.local_grad_norm is not None),
            (self.local_grad_norm or 0.0) * part,
            float(self.moments is not None),
            moments.update_squares,
            moments.momentum_squares,
            moments.parameter_squares,
            moments.elements,
        ]

    def tops(self) -> list[float]:
        """The row of which the largest is taken, position by position."""
        if self.failed:
            return [_NOTHING] * 5
        local = self.local_grad_norm
        return [
            self.variance_top,
            self.loss,
            -self.loss,
            _NOTHING if local is None else local,
            _NOTHING if local is None else -local,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What all ranks together read of one step."""

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
        """From the two rows over all ranks. RuntimeError where a rank could not read, or spoke of another step."""
        steps, failed, loss, with_state, l1, nans, own_norms, squares, given_norms, norm, locally, local, *rest = sums
        if steps != float(global_step) * world:
            raise RuntimeError(f"the ranks' readings of step {global_step} and of other steps came together")
        if failed:
            raise RuntimeError(f"{failed:.0f} rank(s) could not read step {global_step}")
        largest_v, largest_loss, least_loss, largest_norm, least_norm = tops
        with_moments, update_squares, momentum_squares, parameter_squares, elements = rest
        measured = with_moments == world and elements > 0
        return cls(
            loss=loss,
            loss_spread=_spread(largest_loss, least_loss, loss) if world > 1 else None,
            adam_variance_l1=l1 if with_state == world else None,
            adam_variance_max=_root(math.nan if nans else largest_v) if with_state == world else None,
            grad_norm=_root(squares) if own_norms else (norm if given_norms == world else None),
            grad_norm_spread=_spread(largest_norm, least_norm, local) if locally == world > 1 else None,
            update_norm=_root(update_squares / elements) if measured else None,
            momentum_l2=_root(momentum_squares) if measured else None,
            param_norm=_root(parameter_squares) if measured else None,
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
