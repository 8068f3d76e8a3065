"""Curriculum metrics: up to which difficulty samples are drawn at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.formulas import root, rounded, staged
from sentinel.vocabulary.pacing.seqlen_fixed import check_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultySchedule(Described):
    """The largest difficulty that a step may draw, by the metric's value or by its percentile.

    d_t = d_s + (d_e - d_s) * min(((t - a) / T)^(1/r), 1), rounded down to a multiple, never below d_s.

    Linear (r = 1) suits the sequence length. Metrics that draw from a part of the data until the end (vocabulary
    rarity, reordering) take the square root (r = 2), which leaves the easy samples sooner. Equal to DeepSpeed's
    schedulers at the same step where start and full are multiples.

    Source: Li et al. 2022, section 4.1 (arXiv:2212.03597), which prints (t / T)^2 for the square root.
    """

    # "value": difficulties are the metric's own numbers. "percentile": shares of the samples by rank, 1 to 100 %.
    kind: str
    start: int  # d_s, the largest difficulty at the anchor
    full: int  # d_e, the largest difficulty that there is; 100 for percentiles
    total_steps: int = 0  # T, optimizer steps from start to full; 0 draws from all from the first step
    root_degree: float = 1.0  # r, dimensionless: 1 is linear, 2 the square root
    multiple: int = 1  # Difficulties are rounded down to a multiple of this: DeepSpeed's difficulty_step
    anchor_step: int = 0  # a, the completed step that it counts from
    # Listed stages in place of the formula (DeepSpeed's fixed_discrete), taken as they are; () is the formula.
    difficulties: tuple[int, ...] = ()
    max_steps: tuple[int, ...] = ()  # The last step of each listed stage but the last, in steps since the anchor

    def __post_init__(self) -> None:
        if self.kind not in ("value", "percentile"):
            raise ConfigError(f'a difficulty is a "value" or a "percentile", not {self.kind!r}')
        if not 0 <= self.start <= self.full:
            raise ConfigError(f"difficulty start should lie between 0 and the full one, {self.full}, not {self.start}")
        if self.kind == "percentile" and not 1 <= self.start <= self.full <= 100:
            raise ConfigError(f"percentiles lie between 1 and 100, and not {self.start} and {self.full}")
        if self.total_steps < 0 or self.multiple < 1 or not 0 < self.root_degree < math.inf:
            raise ConfigError("difficulty total_steps is at least 0, multiple at least 1, root_degree above 0")
        if self.difficulties or self.max_steps:
            check_stages(self.difficulties, self.max_steps, self.start, self.full)
            if self.total_steps:
                raise ConfigError("difficulty total_steps and listed difficulties say the same thing; leave one out")

    def difficulty(self, step: int) -> int:
        """The largest difficulty of the samples of the update that makes `step`."""
        elapsed = step - self.anchor_step
        if self.difficulties:
            return staged(elapsed, self.difficulties, self.max_steps)
        found = root(elapsed, self.total_steps, start=self.start, full=self.full, degree=self.root_degree)
        return found if found == self.full else rounded(found, self.multiple, least=self.start)

    @property
    def end_step(self) -> int:
        """The first step from which on the difficulty stays as it is."""
        if self.difficulties:
            return self.anchor_step + (self.max_steps[-1] + 1 if self.max_steps else 0)
        return self.anchor_step + self.total_steps if self.start < self.full else self.anchor_step

    @property
    def unit(self) -> str:
        """What a person reads behind a difficulty: percentiles are told as such."""
        return " %" if self.kind == "percentile" else ""

    def anchored_at(self, step: int) -> Self:
        """The same schedule, counted from this completed step."""
        return replace(self, anchor_step=step)

    def __str__(self) -> str:
        """As a person reads it, in a plan."""
        return f"{self.start}{self.unit} -> {self.full}{self.unit} up to step {self.end_step} from {self.anchor_step}"
