"""Another run's loss over its steps: what a run is compared with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Reference:
    """Another run's loss over its steps, to be compared with at the same step."""

    def __init__(self, name: str, points: Sequence[tuple[int, float]]) -> None:
        """`points` are (step, loss in nats), by step; smooth them first, a single loss is noise."""
        self.name = name
        self._steps = [step for step, _ in points]
        self._losses = [loss for _, loss in points]

    @property
    def points(self) -> list[tuple[int, float]]:
        """(step, loss in nats), by step."""
        return list(zip(self._steps, self._losses, strict=True))

    @property
    def ends(self) -> tuple[int, int] | None:
        """The first and the last step that is known of; None where nothing is."""
        return (self._steps[0], self._steps[-1]) if self._steps else None

    def loss(self, step: int) -> float | None:
        """The reference's loss at the step, interpolated; None outside of what is known of it."""
        at = bisect_right(self._steps, step)
        if at == 0 or (at == len(self._steps) and step != self._steps[-1]):
            return None
        if at == len(self._steps):
            return self._losses[-1]
        left, right = self._steps[at - 1], self._steps[at]
        share = (step - left) / (right - left)
        return self._losses[at - 1] + share * (self._losses[at] - self._losses[at - 1])
