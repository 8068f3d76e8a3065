"""A curriculum by metrics: which ones pace the data, and where their indexes lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.vocabulary.codec import Described, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.difficulty import DifficultySchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSchedule(Described):
    """One metric of a curriculum."""

    difficulty: DifficultySchedule
    index: str  # The folder of its two indexes (sample -> value, value -> samples), as the trainer sees it

    def __post_init__(self) -> None:
        if not self.index:
            raise ConfigError("a curriculum metric's index is a folder, not an empty text")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumSchedule:
    """The metrics that pace the data together: a sample is drawn where it is easy enough by each."""

    # By the metric's name, as its index was built (voc, seqreo, … or the user's own); none is no curriculum.
    metrics: Mapping[str, MetricSchedule]

    def anchored_at(self, step: int) -> CurriculumSchedule:
        """The same curriculum, each metric counted from this completed step."""
        moved = {n: replace(m, difficulty=m.difficulty.anchored_at(step)) for n, m in self.metrics.items()}
        return CurriculumSchedule(metrics=moved)

    @property
    def end_step(self) -> int:
        """The first step from which on all difficulties stay as they are."""
        return max((metric.difficulty.end_step for metric in self.metrics.values()), default=0)

    def at(self, step: int) -> str:
        """Up to where the update that makes `step` draws, as a person reads it: `voc up to 31 %`."""
        found = {name: metric.difficulty for name, metric in self.metrics.items()}
        return ", ".join(f"{name} up to {d.difficulty(step)}{d.unit}" for name, d in found.items())

    def to_json(self) -> dict[str, Any]:
        """Metric by metric."""
        return {name: metric.to_json() for name, metric in self.metrics.items()}

    @classmethod
    def from_json(cls, data: Any) -> CurriculumSchedule:
        """What to_json gave. ConfigError names the metric that is wrong."""
        return read(cls, {"metrics": data}, "curriculum")

    def __str__(self) -> str:
        """As a person reads it, in a plan."""
        return "; ".join(f"{name} {metric.difficulty}" for name, metric in self.metrics.items()) or "nothing"
