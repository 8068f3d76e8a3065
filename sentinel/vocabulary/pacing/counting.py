"""Tokens that steps consume, counted from the schedules before any step is made."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.vocabulary.pacing.batch_size import BatchSizeSchedule
from sentinel.vocabulary.pacing.random_ltd import RandomLtdSchedule
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule
from sentinel.vocabulary.pacing.shortening import Shortening

__all__ = ["StepCount", "trained_tokens"]


def trained_tokens(length: int, *, full: int, shorten: Shortening | None) -> int:
    """Tokens of one sample of the data that a step at this length trains on: a reshape makes more samples of it."""
    return full // length * length if (shorten or "truncate").startswith("reshape") else length


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Steps and tokens of a run from its beginning, by its schedules alone.

    A length that the schedules do not tell beforehand (adaptive and custom pacings) counts as the full one, and a batch
    as it is before the trainer rounds it down to whole micro-batches: then the tokens are an upper bound.
    """

    seqlen: SeqlenSchedule
    batch_size: BatchSizeSchedule
    shorten: Shortening = "truncate"
    random_ltd: RandomLtdSchedule | None = None
    layers: int = 1
    """Layers of the model: effective tokens are averaged over them, less what random-LTD drops."""

    def tokens_after(self, steps: int) -> int:
        """Effective tokens consumed once so many steps are made."""
        return self._count(steps=steps)[1]

    def steps_until(self, tokens: int) -> int:
        """Steps after which so many effective tokens are consumed."""
        return self._count(tokens=tokens)[0]

    def _count(self, *, steps: int | None = None, tokens: int | None = None) -> tuple[int, int]:
        """(steps, tokens) at the first of the two limits; steps that are all the same are not counted one by one."""
        step, samples, seen, parts = 0, 0, 0, self.layers  # seen: tokens x layers, whole numbers
        while (steps is None or step < steps) and (tokens is None or seen < tokens * parts):
            batch = self.batch_size.samples(samples)
            one = batch * self._layer_tokens(step + 1)
            times = 1
            if self._constant_from(step + 1, samples):
                left = [] if steps is None else [steps - step]
                left += [] if tokens is None else [-(-(tokens * parts - seen) // one)]
                times = min(left)
            step, samples, seen = step + times, samples + times * batch, seen + times * one
        return step, seen // parts

    def _layer_tokens(self, step: int) -> int:
        """Of one sample of the data, summed over the layers."""
        full, length = self.seqlen.full, self.seqlen.foreseen(step) or self.seqlen.full
        rows = trained_tokens(length, full=full, shorten=self.shorten) // length
        ltd = self.random_ltd
        if ltd is None or not ltd.drops:
            return rows * length * self.layers
        dropping = len(ltd.layers) if ltd.layers is not None else max(self.layers - 2, 0)
        return rows * (length * (self.layers - dropping) + ltd.kept_tokens(step, length) * dropping)

    def _constant_from(self, step: int, samples: int) -> bool:
        """Whether this step and all later ones are the same."""
        end, ltd = self.seqlen.end_step, self.random_ltd
        if end is None or step < end or samples < self.batch_size.end_samples:
            return False
        return ltd is None or step >= ltd.end_step
