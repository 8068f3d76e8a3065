"""Sequence-length and learning-rate schedules as formulas, re-anchored.

Both count from an anchor, the step that a restart resumes from: a schedule that counts from step 0 would be over
before a restart at step 3000 has begun. `step` is everywhere the number of the update that is being made: the first
update of a run is step 1, the first after resuming from global_step10 is step 11.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from sentinel.vocabulary.errors import ConfigError

__all__ = ["LrSchedule", "SeqlenSchedule"]


class _Described:
    """Schedules are reported and decided as JSON objects of their own fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The schedule with these fields. ConfigError names a key that is not one of them, or is missing."""
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        if unknown := data.keys() - known:
            raise ConfigError(f"{cls.__name__} has no {min(unknown)!r}; it has {', '.join(sorted(known))}")
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqlenSchedule(_Described):
    """Sequence length warmup (SLW), linear in steps from its anchor.

    len_t = s + (e - s) * min((t - a) / T, 1), rounded down to a multiple, never below s.

    Source: Li, Zhang & He 2022, section 4 (arXiv:2108.06084), with the anchor added.
    """

    start: int
    """s, tokens per sample at the anchor."""

    full: int
    """e, tokens per sample once warmed up."""

    total_steps: int
    """T, optimizer steps from start to full; 0 is full length from the first step (no warmup)."""

    anchor_step: int = 0
    """a, the completed step that the warmup counts from."""

    multiple: int = 8
    """Lengths are rounded down to a multiple of this (8 suits fp16 tensor cores, 16 int8)."""

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.full:
            raise ConfigError(f"seqlen start should lie between 1 and the full length {self.full}, not {self.start}")
        if self.total_steps < 0 or self.multiple < 1:
            raise ConfigError("seqlen total_steps may not be negative, and multiple not below 1")

    def seqlen(self, step: int) -> int:
        """Tokens per sample of the update that makes `step`."""
        elapsed = step - self.anchor_step
        if not self.total_steps or elapsed >= self.total_steps:
            return self.full
        length = self.start + (self.full - self.start) * max(elapsed, 0) / self.total_steps
        return max(self.start, int(length) // self.multiple * self.multiple)

    @property
    def end_step(self) -> int:
        """The first step that is at full length."""
        return self.anchor_step + self.total_steps if self.start < self.full else self.anchor_step


@dataclass(frozen=True, slots=True, kw_only=True)
class LrSchedule(_Described):
    """Linear warmup from an anchor, times a cosine decay at the run's own progress.

    lr(x) = peak * min(1, (x - a) / W) * decay(x), where decay falls from 1 at `decay_start` to minimum / peak at
    `decay_end` along half a cosine; x, a, W and both ends count steps, or tokens when `unit` says so. Moving the anchor
    at a restart repeats the warmup and leaves the decay where it was.
    """

    peak: float
    """Learning rate at the end of the warmup, before decay."""

    warmup: int
    """W, length of the warmup in `unit`s; 0 is none."""

    decay_end: int
    """Where the decay has reached `minimum`, in `unit`s from the run's beginning; 0 is no decay at all."""

    decay_start: int = 0
    """Where the decay begins, in `unit`s from the run's beginning (as a rule the end of the first warmup)."""

    minimum: float = 0.0
    """Learning rate at and after `decay_end`."""

    anchor: int = 0
    """a, in `unit`s: where the warmup counts from."""

    unit: str = "steps"
    """"steps" or "tokens"."""

    def __post_init__(self) -> None:
        if self.unit not in ("steps", "tokens"):
            raise ConfigError(f'an LR schedule counts in "steps" or "tokens", not {self.unit!r}')
        if not (0 <= self.minimum <= self.peak and math.isfinite(self.peak)):
            raise ConfigError(f"lr minimum {self.minimum} should lie between 0 and the peak {self.peak}")
        if self.warmup < 0 or self.decay_end < 0:
            raise ConfigError("lr warmup and decay_end may not be negative")

    def lr(self, *, step: int, consumed_tokens: int = 0) -> float:
        """Learning rate of the update that makes `step`; `consumed_tokens` are those before it (unit "tokens")."""
        position = step if self.unit == "steps" else consumed_tokens
        warmed = min(1.0, max(0, position - self.anchor) / self.warmup) if self.warmup else 1.0
        return self.peak * warmed * self._decay(position)

    def _decay(self, position: int) -> float:
        span = self.decay_end - self.decay_start
        if not self.decay_end or not self.peak:
            return 1.0
        progress = min(1.0, max(0.0, (position - self.decay_start) / span)) if span > 0 else 1.0
        floor = self.minimum / self.peak
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    @property
    def warmup_end(self) -> int:
        """Where the warmup in force is over, in `unit`s."""
        return self.anchor + self.warmup
