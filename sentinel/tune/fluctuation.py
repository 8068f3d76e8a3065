"""Whether a validation perplexity fluctuates: one formula, and what it says of a whole curve."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

SIGNIFICANT = 1.3
"""A perplexity that is above so many times the best one before it fluctuates significantly (the paper's definition)."""


def perplexity(loss: float) -> float:
    """exp of a loss in nats, dimensionless; inf where the loss is not finite, or too large for a number."""
    return math.exp(loss) if math.isfinite(loss) and loss < 700 else math.inf


def perplexity_ratio(loss: float, best_before: float | None) -> float:
    """This validation's perplexity over the best of all previous ones, dimensionless; the losses are in nats.

    The first (nothing before it) is 1.0. inf where the loss is nan or inf: that is the worst ratio, not a missing one.

    Source: Li, Zhang & He 2022, section 4, "significant fluctuation" (arXiv:2108.06084).
    """
    if not math.isfinite(loss):
        return math.inf
    return 1.0 if best_before is None else perplexity(loss - best_before)


@dataclass(frozen=True, slots=True)
class Curve:
    """The validation losses of one run."""

    points: tuple[tuple[int, float], ...] = ()
    """(global_step, loss in nats at full length), by step. nan and inf are measured, and that bad."""

    def ratios(self) -> tuple[tuple[int, float], ...]:
        """(global_step, perplexity ratio) of each validation. What is not finite never becomes the best."""
        found, best = [], None
        for step, loss in self.points:
            found.append((step, perplexity_ratio(loss, best)))
            if math.isfinite(loss) and (best is None or loss < best):
                best = loss
        return tuple(found)

    def largest_ratio(self) -> float | None:
        """The largest perplexity ratio; None where nothing was validated."""
        return max((ratio for _, ratio in self.ratios()), default=None)

    def fluctuates_at(self, limit: float = SIGNIFICANT) -> int | None:
        """The first step whose ratio is above the limit; None where there is none."""
        return next((step for step, ratio in self.ratios() if ratio > limit), None)

    def with_points(self, more: Iterable[tuple[int, float]]) -> Curve:
        """The curve with later points. A step that is there already was taken again, and counts as it was then."""
        return Curve(tuple(sorted((dict(self.points) | dict(more)).items())))
