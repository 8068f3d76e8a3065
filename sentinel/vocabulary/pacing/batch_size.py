"""Batch-size warmup: GPT-3's, as Megatron's --rampup-batch-size does it. Related to SLW, and never beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeSchedule(Described):
    """The global batch grows in equal increments, each for the same number of samples.

    b(x) = min(b_s + i * floor((x - a) * n / S), b_e) with n = (b_e - b_s) / i increments; x is consumed_samples before
    the step.

    Source: Brown et al. 2020 (arXiv:2005.14165), section 2.3; `RampupBatchsizeNumMicroBatches` of Megatron-LM, with the
    anchor added.
    """

    start: int  # b_s, samples per step over all ranks at the anchor
    full: int  # b_e, samples per step once warmed up: the run's global batch
    increment: int  # i, samples per step that are added at a time; full - start is a multiple of it
    ramp_samples: int  # S, samples from start to full; 0 is the full batch from the first step (no warmup)
    anchor_samples: int = 0  # a, consumed_samples where the warmup counts from

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.full:
            raise ConfigError(f"batch size start should lie between 1 and the full batch {self.full}, not {self.start}")
        if self.increment < 1 or (self.full - self.start) % self.increment:
            raise ConfigError(
                f"a batch from {self.start} to {self.full} does not grow in increments of {self.increment}"
            )
        if self.ramp_samples < 0:
            raise ConfigError(f"batch size ramp_samples may not be negative: {self.ramp_samples}")

    def samples(self, consumed_samples: int, *, multiple_of: int = 1) -> int:
        """Samples of the step that begins at consumed_samples, over all ranks.

        `multiple_of` is data-parallel size x micro-batch: the largest multiple of it is taken, at least one.
        ConfigError where the full batch is no multiple of it.
        """
        if multiple_of < 1 or self.full % multiple_of:
            raise ConfigError(f"a global batch of {self.full} does not divide over {multiple_of} samples at a time")
        consumed = max(consumed_samples - self.anchor_samples, 0)
        if consumed >= self.ramp_samples:
            return self.full
        increments = (self.full - self.start) // self.increment
        batch = self.start + self.increment * (consumed * increments // self.ramp_samples)
        return max(batch // multiple_of, 1) * multiple_of

    @property
    def end_samples(self) -> int:
        """The consumed_samples from which on the batch is full."""
        return self.anchor_samples + self.ramp_samples if self.start < self.full else self.anchor_samples

    @property
    def warms_up(self) -> bool:
        """Whether any step is smaller than the full batch; a run without a ramp reports a schedule that does not."""
        return self.start < self.full and self.ramp_samples > 0

    def anchored_at(self, consumed_samples: int) -> Self:
        """The same warmup, counted from this position in the data."""
        return replace(self, anchor_samples=consumed_samples)

    def __str__(self) -> str:
        """As a person reads it, in a plan."""
        if not self.warms_up:
            return f"{self.full}, not warmed up"
        grows = f"{self.start} -> {self.full} by {self.increment}"
        return f"{grows} over {self.ramp_samples} samples from {self.anchor_samples}"


def refuse_beside_slw(seqlen: SeqlenSchedule | None, batch_size: BatchSizeSchedule | None) -> None:
    """ConfigError where both warm up: each takes tokens out of the batch, and the smallest would hold too few.

    Source: DeepSpeed's curriculum tutorial, section 2.2; Li, Zhang & He 2022, section 5.1 (arXiv:2108.06084).
    """
    if seqlen is not None and seqlen.warms_up and batch_size is not None and batch_size.warms_up:
        raise ConfigError(SLW_AND_BATCH)


# Why they are refused together; a sentence.
SLW_AND_BATCH = (
    "sequence length warmup and batch-size warmup both take tokens out of a batch, so leave one out: "
    "of the two the sequence length is what gives stability"
)
