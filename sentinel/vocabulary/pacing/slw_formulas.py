"""Sequence lengths that follow from the step alone (linear, root, listed, mixed), and the formulas of all schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import ClassVar

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.seqlen import AdaptiveState, SeqlenSchedule


class ByRoot:
    """s + (e - s) * min(((t - a) / T)^(1/r), 1), rounded down to a multiple, never below s; e where T is 0.

    Source: `CurriculumScheduler.__fixed_root_get_difficulty` of DeepSpeed 0.19.8, whose order of operations this is, so
    that both round to the same whole number at every step. Li, Zhang & He 2022
    (arXiv:2108.06084, section 4) and Li et al. 2022 (arXiv:2212.03597, section 4.1) print (t / T)^r and (t / T)^2 where
    they speak of a root.
    """

    __slots__ = ()
    start: int
    full: int
    total_steps: int
    anchor_step: int
    multiple: int
    root_degree: float = 1.0

    def by_root(self, step: int) -> int:
        if not self.total_steps:
            return self.full
        share: float = min(max(step - self.anchor_step, 0) / self.total_steps, 1.0) ** (1.0 / self.root_degree)
        found = math.floor(share * (self.full - self.start) + self.start)
        return found if found == self.full else max(self.start, found // self.multiple * self.multiple)

    @property
    def end_step(self) -> int:
        """The first step of the full value."""
        return self.anchor_step + self.total_steps if self.start < self.full else self.anchor_step


def staged(elapsed: int, stages: Sequence[int], max_steps: Sequence[int]) -> int:
    """The first stage whose last step is not over yet; the last one has no end. Source:
    `CurriculumScheduler.__fixed_discrete_get_difficulty` of DeepSpeed 0.19.8."""
    return next((stage for stage, last in zip(stages, max_steps, strict=False) if elapsed <= last), stages[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLinear(ByRoot, SeqlenSchedule):
    """Linear in steps: len_t = s + (e - s) * min((t - a) / T, 1). The paper's own, and the one to try first.

    Equal to DeepSpeed's `fixed_linear` where start and full are multiples; where the full length is none, DeepSpeed
    stays at the multiple below it for some steps after T, and this does not.
    Source: Li, Zhang & He 2022, section 4 (arXiv:2108.06084).
    """

    pacing: ClassVar[str] = "fixed_linear"
    total_steps: int  # T, optimizer steps from start to full; 0 is full length from the first step (no warmup)

    def _check(self) -> None:
        _not_negative(self.total_steps)

    def seqlen(self, step: int, state: AdaptiveState | None = None) -> int:  # noqa: ARG002 - the step tells all
        return self.by_root(step)

    def _how(self) -> str:
        return f"over {self.total_steps} steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRoot(FixedLinear):
    """A root in steps: fast at first, then slowly. The paper found it no better than linear. Source: DeepSpeed's
    `fixed_root`. Li, Zhang & He 2022, section 4 (arXiv:2108.06084) prints the exponent as r."""

    pacing: ClassVar[str] = "fixed_root"
    root_degree: float = 2.0  # r, dimensionless: 1 is linear, 2 the square root, 3 the cube root

    def _check(self) -> None:
        _not_negative(self.total_steps)
        if not (0 < self.root_degree < math.inf):
            raise ConfigError(f"seqlen root_degree should be above 0 and finite, not {self.root_degree}")

    def _how(self) -> str:
        return f"by the root of degree {self.root_degree:g} over {self.total_steps} steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDiscrete(SeqlenSchedule):
    """Listed stages: the first difficulty up to its max_step, and so on. They are taken as they are, not rounded. A
    stage that lasts too long can diverge at the switch. Source: DeepSpeed's `fixed_discrete`, with the anchor added;
    Press, Smith & Lewis 2021 (arXiv:2012.15832, Shortformer): `difficulties=(128, 3072), max_steps=(T,)`."""

    pacing: ClassVar[str] = "fixed_discrete"
    difficulties: tuple[int, ...]  # Tokens per sample of each stage, from start up to full, none below the one before
    max_steps: tuple[int, ...]  # Last step of each stage but the last, since the anchor; one fewer than difficulties

    def _check(self) -> None:
        check_stages(self.difficulties, self.max_steps, self.start, self.full)

    def seqlen(self, step: int, state: AdaptiveState | None = None) -> int:  # noqa: ARG002 - the step tells all
        return staged(step - self.anchor_step, self.difficulties, self.max_steps)

    @property
    def end_step(self) -> int:
        return self.anchor_step + self.max_steps[-1] + 1 if self.max_steps else self.anchor_step

    def _how(self) -> str:
        return f"in {len(self.difficulties)} stages up to step {self.end_step},"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed(SeqlenSchedule):
    """Short steps, then full ones, and again: a probe whether it is the length that sets the instability off. Source:
    Li, Zhang & He 2022, section 3 and Figure 2 (arXiv:2108.06084): of 900 steps at 128 and 100 at 1K the loss spiked at
    the long ones."""

    pacing: ClassVar[str] = "mixed"
    short_steps: int = 900  # Steps at the start length, first in each round
    full_steps: int = 100  # Steps at the full length, after them
    total_steps: int | None = None  # Steps since the anchor until all is full length. 0: no rounds, None: for ever

    def _check(self) -> None:
        if self.short_steps < 1 or self.full_steps < 1:
            raise ConfigError("seqlen short_steps and full_steps should be at least 1")
        _not_negative(self.total_steps or 0)

    def seqlen(self, step: int, state: AdaptiveState | None = None) -> int:  # noqa: ARG002 - the step tells all
        elapsed = step - self.anchor_step
        if self.total_steps == 0 or (self.total_steps is not None and elapsed > self.total_steps):
            return self.full
        in_round = max(elapsed - 1, 0) % (self.short_steps + self.full_steps)
        return self.start if in_round < self.short_steps else self.full

    @property
    def end_step(self) -> int | None:
        if self.total_steps is None:
            return None
        return self.anchor_step + self.total_steps + 1 if self.total_steps else self.anchor_step

    def _how(self) -> str:
        lasting = "for ever" if self.total_steps is None else f"for {self.total_steps} steps"
        return f"in turn, {self.short_steps} and {self.full_steps} steps, {lasting}"


def staircase(schedule: SeqlenSchedule) -> FixedDiscrete:
    """The same lengths at every step as listed stages, for a trainer that takes DeepSpeed's `fixed_discrete` alone.
    ConfigError for a pacing whose lengths nobody knows beforehand, or that comes down again."""
    anchor, end = schedule.anchor_step, schedule.end_step
    if end is None:
        raise ConfigError(
            f"a seqlen pacing that is {schedule.pacing} can't be listed: its lengths are not known beforehand"
        )
    stages = [(length, len(list(steps))) for length, steps in groupby(map(schedule.seqlen, range(anchor + 1, end + 1)))]
    return FixedDiscrete(
        start=schedule.start,
        full=schedule.full,
        anchor_step=anchor,
        multiple=schedule.multiple,
        difficulties=tuple(length for length, _ in stages) or (schedule.seqlen(end),),
        max_steps=tuple(accumulate(steps for _, steps in stages[:-1])),
    )


def check_stages(stages: tuple[int, ...], max_steps: tuple[int, ...], start: int, full: int) -> None:
    if not stages or len(max_steps) != len(stages) - 1:
        raise ConfigError(
            f"{len(stages)} difficulties need {max(len(stages) - 1, 0)} max_steps and not {len(max_steps)}: "
            "the last one has no end"
        )
    if list(stages) != sorted(stages) or not start <= stages[0] <= stages[-1] <= full:
        raise ConfigError(f"difficulties should rise from {start} to {full} at most: {list(stages)}")
    if list(max_steps) != sorted(set(max_steps)) or (max_steps and max_steps[0] < 0):
        raise ConfigError(f"max_steps should rise from 0 or more: {list(max_steps)}")


def _not_negative(total_steps: int) -> None:
    if total_steps < 0:
        raise ConfigError(f"seqlen total_steps may not be negative: {total_steps}")
