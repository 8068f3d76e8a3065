"""The learning-rate schedule as a formula, re-anchored.

A restart's warmup counts from an anchor, the step that it resumes from: one that counts from step 0 would be over
before a restart at step 3000 has begun.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.errors import ConfigError

__all__ = ["LrSchedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LrSchedule(Described):
    """Linear warmup from an anchor, times a cosine (or linear) decay that begins where the run's first warmup ends.

    lr(x) = peak * min(1, (x - a) / W) * decay(y), where decay is 1 up to `decay_start` and falls from there to
    minimum / peak at `decay_end` along half a cosine. x, a and W count steps, or tokens when `unit` says so; y and both
    ends too, or what `decay_unit` says: beside SLW the decay goes by tokens and the warmup does not (DeepSpeed's
    curriculum tutorial, 2.4 and 2.5). A decay by tokens after a warmup by steps begins at the tokens that are consumed
    when the warmup's steps are made (`Track`), as in Megatron's scheduler: never during the warmup.

    A restart moves the anchor, and may make W longer: that repeats the warmup and leaves the decay where it was, at the
    run's own progress. "After the warmup" therefore means after the run's first warmup, whatever is warmed up again
    later: at no step is the LR of a restart above the LR that the run had planned for that step, and from the new
    warmup's end on it equals it. The price: a new warmup that reaches far into the decay never comes to the peak, so
    it lowers the largest LR too (`largest` tells it).

    Source: Li, Zhang & He 2022, section 3 (arXiv:2108.06084): "a linear warmup of 3K steps and a single cycle cosine
    decay over the remaining 297K steps"; Megatron-LM's OptimizerParamScheduler.
    """

    peak: float
    """Learning rate at the end of the warmup, before decay."""

    warmup: int
    """W, length of the warmup in `unit`s; 0 is none."""

    decay_end: int
    """Where the decay has reached `minimum`, in decay units from the run's beginning; 0 is no decay at all."""

    decay_start: int = 0
    """Where the decay begins, in decay units from the run's beginning: where the run's first warmup ends."""

    minimum: float = 0.0
    """Learning rate at and after `decay_end`."""

    anchor: int = 0
    """a, in `unit`s: where the warmup counts from."""

    unit: str = "steps"
    """"steps", "tokens", or "samples", as Megatron's scheduler counts."""

    decay_unit: str | None = None
    """The same for the decay; None is `unit`, and is left out of JSON."""

    decay_shape: str | None = None
    """"linear", as Hugging Face's Trainer decays by default; None is half a cosine, and is left out of JSON."""

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
        """The largest LR of the updates `first` to `last`, and its step; None where the LR does not count steps.

        Of a stretch longer than 4096 steps, every n-th step and the end of the warmup are looked at.
        """
        if {self.unit, self.decay_unit or self.unit} != {"steps"} or last < first:
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

    def to_json(self) -> dict[str, Any]:
        """Its fields, as journals have held them since before there was a decay unit or shape of its own."""
        found = Described.to_json(self)
        return {k: v for k, v in found.items() if v is not None}

    @property
    def warmup_end(self) -> int:
        """Where the warmup in force is over, in `unit`s."""
        return self.anchor + self.warmup
