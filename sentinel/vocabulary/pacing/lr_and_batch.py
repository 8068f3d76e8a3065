"""The learning rate and the batch size as formulas that count from an anchor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class LrSchedule(Described):
    """Linear warmup from an anchor, times a cosine (or linear) decay that begins where the run's first warmup ends.

    lr(x) = peak * min(1, (x - a) / W) * decay(y), where decay is 1 up to `decay_start` and falls from there to
    minimum / peak at `decay_end` along half a cosine. x, a and W count `unit`s, y and both ends `decay_unit`s: beside
    SLW the decay goes by tokens and the warmup does not (DeepSpeed's curriculum tutorial, 2.4 and 2.5).

    A restart moves the anchor, and may make W longer: that repeats the warmup and leaves the decay where it was, at the
    run's own progress. So at no step is the LR of a restart above the LR that the run had planned for that step, and
    from the new warmup's end on it equals it; a new warmup that reaches far into the decay never comes to the peak.

    Source: Li, Zhang & He 2022, section 3 (arXiv:2108.06084): "a linear warmup of 3K steps and a single cycle cosine
    decay over the remaining 297K steps"; Megatron-LM's OptimizerParamScheduler.
    """

    peak: float  # Learning rate at the end of the warmup, before decay
    warmup: int  # W, length of the warmup in `unit`s; 0 is none
    decay_end: int  # Where the decay has reached `minimum`, in decay units from the run's beginning; 0 is no decay
    decay_start: int = 0  # Where the decay begins, in decay units: where the run's first warmup ends
    minimum: float = 0.0  # Learning rate at and after `decay_end`
    anchor: int = 0  # a, in `unit`s: where the warmup counts from
    unit: str = "steps"  # "steps", "tokens", or "samples", as Megatron's scheduler counts
    decay_unit: str | None = None  # The same for the decay; None is `unit`, and is left out of JSON
    decay_shape: str | None = None  # "linear", as Hugging Face's Trainer by default; None is half a cosine, not in JSON

    def __post_init__(self) -> None:
        for unit in (self.unit, self.decay_unit or self.unit):
            if unit not in ("steps", "samples", "tokens"):
                raise ConfigError(f'an LR schedule counts in "steps", "samples" or "tokens", not {unit!r}')
        if self.decay_shape not in (None, "linear"):
            raise ConfigError(f'an LR decays along half a cosine, or "linear", not {self.decay_shape!r}')
        if not (0 <= self.minimum <= self.peak and math.isfinite(self.peak)):
            raise ConfigError(f"lr minimum {self.minimum} should lie between 0 and the peak {self.peak}")
        if self.warmup < 0 or self.decay_end < 0:
            raise ConfigError("lr warmup and decay_end may not be negative")

    def lr(self, *, step: int, consumed_tokens: int = 0, consumed_samples: int = 0) -> float:
        """Learning rate of the update that makes `step`; tokens and samples are those consumed before it."""
        positions = {"steps": step, "tokens": consumed_tokens, "samples": consumed_samples}
        elapsed = max(0, positions[self.unit] - self.anchor)
        warmed = min(1.0, elapsed / self.warmup) if self.warmup else 1.0
        return self.peak * warmed * self._decay(positions[self.decay_unit or self.unit])

    def largest(self, first: int, last: int) -> tuple[float, int] | None:
        """The largest LR of the updates `first` to `last`, and its step; None where the LR does not count steps. Of a
        stretch longer than 4096 steps, every n-th step and the end of the warmup are looked at."""
        if not self.by_steps or last < first:
            return None
        steps = {*range(first, last + 1, max(1, (last - first) // 4096)), min(max(self.warmup_end, first), last)}
        step = max(sorted(steps), key=lambda step: self.lr(step=step))
        return self.lr(step=step), step

    def _decay(self, position: int) -> float:
        if not self.decay_end or not self.peak or position <= self.decay_start:
            return 1.0
        progress = min(1.0, (position - self.decay_start) / max(self.decay_end - self.decay_start, 1))
        floor = self.minimum / self.peak
        if self.decay_shape == "linear":
            return floor + (1 - floor) * (1 - progress)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    def with_peak(self, peak: float) -> Self:
        """The same curve for another peak: every LR is multiplied, the minimum likewise. A minimum that stayed where it
        was would make the decay flat, or lie above the peak."""
        factor = peak / self.peak if self.peak else 0.0
        return replace(self, peak=peak, minimum=min(self.minimum * factor, peak))

    def to_json(self) -> dict[str, Any]:
        """Its fields, as journals have held them since before there was a decay unit or shape of its own."""
        return {name: value for name, value in Described.to_json(self).items() if value is not None}

    @property
    def by_steps(self) -> bool:
        """Whether warmup and decay both count steps, so that a step alone tells the LR."""
        return {self.unit, self.decay_unit or self.unit} == {"steps"}

    @property
    def warmup_end(self) -> int:
        return self.anchor + self.warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeSchedule(Described):
    """The global batch grows in equal increments, each for the same number of samples. b(x) = min(b_s + i * floor((x -
    a) * n / S), b_e) with n = (b_e - b_s) / i; x is consumed_samples before the step. Source: Brown et al. 2020
    (arXiv:2005.14165), section 2.3; `RampupBatchsizeNumMicroBatches` of Megatron-LM, with the anchor added."""

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
        """Samples of the step that begins at consumed_samples, over all ranks: the largest multiple of `multiple_of`
        (data-parallel size x micro-batch), at least one. ConfigError where the full batch is no multiple of it."""
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
        return self.anchor_samples + self.ramp_samples if self.start < self.full else self.anchor_samples

    @property
    def warms_up(self) -> bool:
        """Whether any step is smaller than the full batch; a run without a ramp reports a schedule that does not."""
        return self.start < self.full and self.ramp_samples > 0

    def anchored_at(self, consumed_samples: int) -> Self:
        return replace(self, anchor_samples=consumed_samples)

    def __str__(self) -> str:
        if not self.warms_up:
            return f"{self.full}, not warmed up"
        grows = f"{self.start} -> {self.full} by {self.increment}"
        return f"{grows} over {self.ramp_samples} samples from {self.anchor_samples}"


def refuse_beside_slw(seqlen: SeqlenSchedule | None, batch_size: BatchSizeSchedule | None) -> None:
    """ConfigError where both warm up. Source: DeepSpeed's curriculum tutorial, section 2.2; Li, Zhang & He 2022
    (arXiv:2108.06084), section 5.1."""
    if seqlen is not None and seqlen.warms_up and batch_size is not None and batch_size.warms_up:
        raise ConfigError(SLW_AND_BATCH)


SLW_AND_BATCH = (
    "sequence length warmup and batch-size warmup both take tokens out of a batch, so leave one out: "
    "of the two the sequence length is what gives stability"
)
