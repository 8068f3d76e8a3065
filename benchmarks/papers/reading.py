"""What a run did: its samples, its validations, how unstable it was, and when it had reached a loss."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import Record, Sample, Validation

from .cases import Run

__all__ = ["OVER", "Cost", "Curve", "Instability", "Reached", "diverged"]

OVER = 1.2
"""A loss ratio above it counts, as in the paper's Table 1."""

LASTING_STEPS = 20
"""A loss that stays as far above its minimum for so many steps has diverged; a spike comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instability:
    """A row of Table 1, of one run."""

    steps: int
    over: int
    """Steps with a loss ratio above 1.2."""

    largest: float
    """inf where a loss was no number."""

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Instability:
        return cls(steps=len(ratios), over=sum(r > OVER for r in ratios), largest=max(ratios, default=math.nan))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """When a run first had a validation loss, at full length, as low as that."""

    tokens: int
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run, read."""

    run: Run
    samples: tuple[Sample, ...]
    validations: tuple[Validation, ...]

    @classmethod
    def of(cls, run: Run, records: Iterable[Record]) -> Curve:
        kept = list(records)
        return cls(
            run=run,
            samples=tuple(r for r in kept if isinstance(r, Sample)),
            validations=tuple(r for r in kept if isinstance(r, Validation)),
        )

    @property
    def ratios(self) -> list[float]:
        """As the paper has it: over the smallest loss of all previous steps, whatever their length."""
        minimum = LossMinimum()
        return [minimum.push(s.loss, None) for s in self.samples]

    @property
    def ratios_by_length(self) -> list[float]:
        """As the hook has it: over the smallest loss of all previous steps of the same length."""
        minimum = LossMinimum()
        return [minimum.push(s.loss, s.seqlen) for s in self.samples]

    @property
    def best(self) -> float:
        """The smallest validation loss, nats; nan where none is a number."""
        return min((v.loss for v in self.validations if math.isfinite(v.loss)), default=math.nan)

    @property
    def final(self) -> float:
        """The last validation loss, nats."""
        return self.validations[-1].loss if self.validations else math.nan

    @property
    def tokens(self) -> dict[int, int]:
        """Of each step, consumed_tokens after it."""
        return {s.global_step: s.consumed_tokens or 0 for s in self.samples}

    def reached(self, loss: float, cost: Cost) -> Reached | None:
        """None where it never was that low."""
        for validation in self.validations:
            if validation.loss <= loss:
                step = validation.global_step
                return Reached(tokens=self.tokens[step], time_s=cost.seconds(self)[step])
        return None


def diverged(losses: Sequence[float]) -> bool:
    """Whether the loss is no number, or stays above 1.2 x its smallest so far for 20 steps on end."""
    minimum, lasting = LossMinimum(), 0
    for loss in losses:
        ratio = minimum.push(loss, None)
        lasting = lasting + 1 if ratio > OVER else 0
        if math.isinf(ratio) or lasting >= LASTING_STEPS:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step, by what it computes: the median of all such steps in all runs, validations left out.

    A machine that others use too slows one case and not another; the median over all runs does not know which.
    """

    seconds_of: Mapping[tuple[int | None, int | None, int], float]
    """By (seqlen, samples, samples per pass)."""

    @classmethod
    def of(cls, curves: Iterable[Curve]) -> Cost:
        taken = defaultdict(list)
        for curve in curves:
            for sample in curve.samples:
                if sample.step_time_s is not None:
                    taken[_kind(curve, sample)].append(sample.step_time_s)
        return cls({kind: median(times) for kind, times in taken.items()})

    def seconds(self, curve: Curve) -> dict[int, float]:
        """Of each step, the time up to its end."""
        passed, times = 0.0, {}
        for sample in curve.samples:
            passed += self.seconds_of.get(_kind(curve, sample), sample.step_time_s or 0.0)
            times[sample.global_step] = passed
        return times


def _kind(curve: Curve, sample: Sample) -> tuple[int | None, int | None, int]:
    return sample.seqlen, sample.global_batch_samples, curve.run.micro
