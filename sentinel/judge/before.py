"""What a recovery is compared with: the best mean loss of the steps before the onset, and the trend they were on."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.vocabulary.sample import Sample

__all__ = ["WINDOW", "BestMean", "OldTrend", "comparable"]

WINDOW = 20
"""Steps of the mean loss that the level before the onset and the level now are compared by."""


class BestMean:
    """The smallest mean loss over `window` neighbouring steps so far, nats; keeps one window."""

    def __init__(self, window: int, full_seqlen: int | None) -> None:
        self._full_seqlen = full_seqlen
        self._losses: deque[float] = deque(maxlen=window)
        self.value: float | None = None
        """None before there is a whole window."""

    def push(self, sample: Sample) -> None:
        """Takes the next sample, if it compares."""
        if not comparable(sample, self._full_seqlen):
            return
        self._losses.append(sample.loss)
        if len(self._losses) == self._losses.maxlen:
            mean = math.fsum(self._losses) / len(self._losses)
            self.value = mean if self.value is None else min(mean, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTrend:
    """A falling power law, loss over step, through the last half of the steps before the onset."""

    last_step: int
    mean_log_step: float
    mean_log_loss: float
    slope: float
    """Below 0."""

    @classmethod
    def of(cls, before: Iterable[Sample], full_seqlen: int | None) -> OldTrend | None:
        """None where there are less than 10 windows to draw a line through, or the loss was not falling."""
        steps, losses = array("q"), array("d")
        for sample in before:
            if comparable(sample, full_seqlen):
                steps.append(sample.global_step)
                losses.append(sample.loss)
        half = len(steps) // 2
        if len(steps) - half < 10 * WINDOW:
            return None
        xs = array("d", (math.log(max(1, at)) for at in steps[half:]))
        ys = array("d", (math.log(loss) if loss > 0 else 0.0 for loss in losses[half:]))
        mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
        spread = math.fsum((x - mean_x) ** 2 for x in xs)
        slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
        if slope >= 0:
            return None  # it was not improving: there is no trend to follow
        return cls(last_step=steps[-1], mean_log_step=mean_x, mean_log_loss=mean_y, slope=slope)

    def reaches(self, step: int) -> bool:
        """Whether the step is no further than there were steps again: no extrapolation beyond that."""
        return step <= 2 * self.last_step

    def at(self, step: int) -> float:
        """Where the loss would be, nats."""
        return math.exp(self.mean_log_loss + self.slope * (math.log(step) - self.mean_log_step))


def comparable(sample: Sample, full_seqlen: int | None) -> bool:
    """Whether its loss is a number, of all the data and all tokens, at full length where that is given."""
    at_length = full_seqlen is None or sample.seqlen is None or sample.seqlen >= full_seqlen
    whole = sample.kept_tokens is None or (sample.seqlen is not None and sample.kept_tokens >= sample.seqlen)
    of_all = sample.curriculum_share is None or sample.curriculum_share >= 1
    return at_length and whole and of_all and not sample.skipped and math.isfinite(sample.loss)
