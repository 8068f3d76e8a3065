"""What DeepSpeed calls data efficiency: curricula by metrics, and random layerwise token dropping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from sentinel.vocabulary.codec import Described, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.slw_formulas import ByRoot, check_stages, staged


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultySchedule(ByRoot, Described):
    """The largest difficulty that a step may draw, by the metric's value or by its percentile; see ByRoot.

    Linear (r = 1) suits the sequence length. Metrics that draw from a part of the data until the end (vocabulary
    rarity, reordering) take the square root (r = 2), which leaves the easy samples sooner.
    Source: Li et al. 2022, section 4.1 (arXiv:2212.03597), which prints (t / T)^2 for the square root.
    """

    kind: str  # "value": the metric's own numbers; "percentile": shares of the samples by rank, 1 to 100 %
    start: int  # d_s, the largest difficulty at the anchor
    full: int  # d_e, the largest difficulty that there is; 100 for percentiles
    total_steps: int = 0  # T, optimizer steps from start to full; 0 draws from all from the first step
    root_degree: float = 1.0  # r, dimensionless: 1 is linear, 2 the square root
    multiple: int = 1  # Difficulties are rounded down to a multiple of this: DeepSpeed's difficulty_step
    anchor_step: int = 0  # a, the completed step that it counts from
    difficulties: tuple[int, ...] = ()  # Listed stages, not rounded (DeepSpeed's fixed_discrete); () is the formula
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
        if self.difficulties:
            return staged(step - self.anchor_step, self.difficulties, self.max_steps)
        return self.by_root(step)

    @property
    def end_step(self) -> int:
        if self.difficulties:
            return self.anchor_step + (self.max_steps[-1] + 1 if self.max_steps else 0)
        return self.anchor_step + self.total_steps if self.start < self.full else self.anchor_step

    @property
    def unit(self) -> str:
        return " %" if self.kind == "percentile" else ""

    def anchored_at(self, step: int) -> Self:
        return replace(self, anchor_step=step)

    def __str__(self) -> str:
        return f"{self.start}{self.unit} -> {self.full}{self.unit} up to step {self.end_step} from {self.anchor_step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSchedule(Described):
    difficulty: DifficultySchedule
    index: str  # The folder of its two indexes (sample -> value, value -> samples), as the trainer sees it

    def __post_init__(self) -> None:
        if not self.index:
            raise ConfigError("a curriculum metric's index is a folder, not an empty text")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumSchedule:
    """The metrics that pace the data together: a sample is drawn where it is easy enough by each."""

    metrics: Mapping[str, MetricSchedule]  # By name, as its index was built (voc, seqreo, …); none is no curriculum

    def anchored_at(self, step: int) -> CurriculumSchedule:
        moved = {n: replace(m, difficulty=m.difficulty.anchored_at(step)) for n, m in self.metrics.items()}
        return CurriculumSchedule(metrics=moved)

    @property
    def end_step(self) -> int:
        return max((metric.difficulty.end_step for metric in self.metrics.values()), default=0)

    def at(self, step: int) -> str:
        """Up to where the update that makes `step` draws, as a person reads it: `voc up to 31 %`."""
        found = {name: metric.difficulty for name, metric in self.metrics.items()}
        return ", ".join(f"{name} up to {d.difficulty(step)}{d.unit}" for name, d in found.items())

    def to_json(self) -> dict[str, Any]:
        return {name: metric.to_json() for name, metric in self.metrics.items()}

    @classmethod
    def from_json(cls, data: Any) -> CurriculumSchedule:
        return read(cls, {"metrics": data}, "curriculum")

    def __str__(self) -> str:
        return "; ".join(f"{name} {metric.difficulty}" for name, metric in self.metrics.items()) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomLtdSchedule(ByRoot, Described):
    """Tokens of each sample that a dropping layer keeps, linear in steps from an anchor. DeepSpeed's RandomLTDScheduler
    counts the steps before this one: it keeps at step t what is kept here at t - 1. Source: Yao et al. 2022
    (arXiv:2211.11586); Li et al. 2022, section 3.2 (arXiv:2212.03597)."""

    start: int  # r_s, tokens per sample kept at the anchor
    full: int  # e, tokens per sample: the full sequence length
    total_steps: int  # T, optimizer steps until nothing is dropped; 0 drops nothing at all
    anchor_step: int = 0  # a, the completed step that it counts from
    multiple: int = 16  # Rounded down to a multiple of this: DeepSpeed's seq_per_step
    layers: tuple[int, ...] | None = None  # Which layers drop, counted from 0; None is all but the first and the last

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.full:
            raise ConfigError(
                f"random-LTD start should lie between 1 and the full length {self.full}, not {self.start}: "
                "there is nothing to drop above it"
            )
        if self.total_steps < 0 or self.multiple < 1:
            raise ConfigError("random-LTD total_steps may not be negative, and multiple not below 1")
        if self.layers is not None and (
            list(self.layers) != sorted(set(self.layers)) or any(layer < 0 for layer in self.layers)
        ):
            raise ConfigError(f"random-LTD layers should be numbers from 0, each once and rising: {list(self.layers)}")

    def kept_tokens(self, step: int, seqlen: int | None = None) -> int:
        """Tokens per sample kept in the update that makes `step`, of `seqlen` that there are (None: full length)."""
        kept = self.by_root(step)
        return kept if seqlen is None else min(kept, seqlen)

    @property
    def drops(self) -> bool:
        """Whether any step drops tokens; a run without random-LTD may report a schedule that does not."""
        return self.end_step > self.anchor_step

    def anchored_at(self, step: int) -> Self:
        return replace(self, anchor_step=step)

    def __str__(self) -> str:
        if not self.drops:
            return "all tokens"
        return f"{self.start} -> {self.full} tokens over {self.total_steps} steps from {self.anchor_step}"
