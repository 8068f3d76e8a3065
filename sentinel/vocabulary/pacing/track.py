"""Where a run's steps lead: samples and tokens, counted on from a position by the schedules alone."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.batch_size import BatchSizeSchedule
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule
from sentinel.vocabulary.pacing.shortening import Shortening

__all__ = ["Position", "Track"]

_MOST_STEPS = 5_000_000
"""Steps that are counted one by one; a run of more than these under a schedule that still changes is not followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Between two steps of a run: what is completed and consumed there."""

    step: int = 0
    """Completed optimizer steps."""

    samples: int = 0
    """Samples consumed, over all ranks."""

    tokens: int = 0
    """Tokens consumed, over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """The batch and the sequence length of every step to come.

    A length that nobody knows beforehand (adaptive and custom pacings) counts as the start length. The batch is counted
    as it is before the trainer rounds it down to whole micro-batches.
    """

    full: int
    """Tokens per sample at the full length."""

    batch: BatchSizeSchedule
    seqlen: SeqlenSchedule | None = None
    """None is the full length at every step."""

    shorten: Shortening = "truncate"

    def tokens_per_sample(self, step: int) -> int:
        """Tokens that the update that makes `step` trains on, of each sample of the data."""
        if self.seqlen is None:
            return self.full
        length = self.seqlen.foreseen(step) or self.seqlen.start
        return self.full // length * length if self.shorten.startswith("reshape") else length

    def reach(
        self, at: Position, *, step: int | None = None, samples: int | None = None, tokens: int | None = None
    ) -> Position:
        """The first position from `at` on where the given limit is reached; `at` itself where it is already."""
        counted = 0
        while (left := _left(at, step, samples, tokens)) > 0:
            batch, each = self.batch.samples(at.samples), self.tokens_per_sample(at.step + 1)
            times = 1
            if self._constant_after(at):
                one = batch if samples is not None else batch * each if tokens is not None else 1
                times = -(-left // one)
            elif (counted := counted + 1) > _MOST_STEPS:
                raise ConfigError(f"a schedule that still changes after {_MOST_STEPS} steps can't be counted")
            at = Position(
                step=at.step + times,
                samples=at.samples + times * batch,
                tokens=at.tokens + times * batch * each,
            )
        return at

    def tokens_at(self, at: Position, samples: int) -> int:
        """Tokens consumed when exactly so many samples are, also within a step."""
        end = self.reach(at, samples=samples)
        return end.tokens - (end.samples - samples) * (self.tokens_per_sample(end.step) if end.samples > samples else 0)

    def _constant_after(self, at: Position) -> bool:
        """Whether all steps from here on are alike."""
        if at.samples < self.batch.end_samples:
            return False
        if self.seqlen is None or not self.seqlen.warms_up:
            return True
        end = self.seqlen.end_step
        if end is None:
            return self.seqlen.foreseen(at.step + 1) is None
        return at.step + 1 >= end


def _left(at: Position, step: int | None, samples: int | None, tokens: int | None) -> int:
    if samples is not None:
        return samples - at.samples
    if tokens is not None:
        return tokens - at.tokens
    return (step or 0) - at.step
