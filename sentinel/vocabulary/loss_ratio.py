"""The loss ratio, with its minimum per sequence length: the formula that the hook and the judge share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

SPIKE_RATIO = 1.2  # A step above it counts as a spike step. Source: Li, Zhang & He 2022, Table 1 (arXiv:2108.06084).


def loss_ratio(loss: float, previous_minimum: float | None) -> float:
    """This step's loss over the smallest loss of all previous steps, dimensionless; below 1 at a new minimum. 1.0 at
    the first step, inf when the loss is nan or inf: a loss that is not a number is the worst ratio. Source: Li, Zhang &
    He 2022, "The Stability-Efficiency Dilemma", Table 1 (arXiv:2108.06084)."""
    if not math.isfinite(loss):
        return math.inf
    if previous_minimum is None:
        return 1.0
    return loss / previous_minimum if previous_minimum else math.inf


class LossMinimum:
    """The smallest finite loss so far, per sequence length, since a loss at length 8 is not one at 1024. It travels in
    the checkpoint's client state (`state`, `load`), so that it survives a restart."""

    def __init__(self, minima: Mapping[int | None, float] | None = None) -> None:
        self._minima: dict[int | None, float] = dict(minima or {})

    def push(self, loss: float, seqlen: int | None) -> float:
        """The loss ratio of this step; afterwards the step counts among the previous ones. See `loss_ratio`."""
        previous = self._minima.get(seqlen)
        ratio = loss_ratio(loss, previous)
        if math.isfinite(loss):
            self._minima[seqlen] = loss if previous is None else min(loss, previous)
        return ratio

    def over_all_lengths(self, loss: float, seqlen: int | None) -> float | None:
        """The loss ratio of this step, which is not pushed yet, over all previous ones whatever their length, as the
        paper takes it: a longer sequence after a short one can raise it without an instability. None where this length
        is the only one."""
        if not self._minima.keys() - {seqlen}:
            return None
        return loss_ratio(loss, min(self._minima.values()))

    def state(self) -> list[tuple[int | None, float]]:
        return list(self._minima.items())

    @classmethod
    def load(cls, state: Iterable[tuple[int | None, float]]) -> LossMinimum:
        return cls(dict(state))
