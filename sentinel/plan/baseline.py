"""What the run ran with when the incident began, as the incident log records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.vocabulary.overrides import Free
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    LrSchedule,
    Position,
    RandomLtdSchedule,
    SeqlenSchedule,
    Shortening,
    Track,
)
from sentinel.vocabulary.skipping import SkippedRange

__all__ = ["Baseline", "lr_warmup_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the run ran with when the incident began: each rung changes this, not what the last rung left.

    None is what the trainer has not reported.
    """

    seed: int | None = None
    lr: LrSchedule | None = None
    seqlen: SeqlenSchedule | None = None
    full_seqlen: int | None = None
    shorten: Shortening | None = None
    total_steps: int | None = None
    """Where the run ends by itself."""

    total_tokens: int | None = None
    """The same by tokens; where both are there, it ends at the first."""

    total_samples: int | None = None
    """The same by samples."""

    lr_from_start: bool | None = None
    """Whether the trainer counts the LR's warmup from the run's beginning at every restart, as Megatron does."""

    parameters: float | None = None
    """Parameters of the model."""

    batch_size: BatchSizeSchedule | None = None
    random_ltd: RandomLtdSchedule | None = None
    curriculum: CurriculumSchedule | None = None
    """The last four say what is off, too: None is a trainer that does not know of such a thing."""

    adam_beta1: float | None = None
    adam_beta2: float | None = None
    weight_decay: float | None = None
    clip_grad: float | None = None
    precision: str | None = None
    loss_scale: float | None = None
    skipped: tuple[SkippedRange, ...] | None = None
    """What was left out of the data before the incident; it stays out."""

    moments_reset_steps: tuple[int, ...] | None = None
    free: Free | None = None
    from_arguments: tuple[str, ...] = ()
    """Fields of this that were read from the trainer's arguments, not from what it runs with."""

    by_script: tuple[str, ...] = ()
    """The fields that the trainer has not reported, and that its job script shows."""

    def without_script(self) -> Baseline:
        """What the trainer itself has reported."""
        unsaid: dict[str, Any] = dict.fromkeys(self.by_script)
        return replace(self, **unsaid, by_script=()) if unsaid else self

    def to_json(self) -> dict[str, Any]:
        """As `opened` records it."""
        return {
            **{key: getattr(self, key) for key in _PLAIN},
            **{key: None if (value := getattr(self, key)) is None else value.to_json() for key in _SCHEDULES},
            "skipped": None if self.skipped is None else [r.to_json() for r in self.skipped],
            "moments_reset_steps": self.moments_reset_steps,
            "free": self.free.to_json() if self.free else None,
            "from_arguments": self.from_arguments,
            "by_script": list(self.by_script),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Baseline:
        """The baseline that to_json gave, also that of an older version. ConfigError, KeyError for anything else."""
        skipped, resets, free = data.get("skipped"), data.get("moments_reset_steps"), data.get("free")
        schedules = {"lr": data["lr"], "seqlen": data["seqlen"]} | {key: data.get(key) for key in _SCHEDULES}
        return cls(
            **{key: data.get(key) for key in _PLAIN},
            **{key: None if told is None else _SCHEDULES[key](told) for key, told in schedules.items()},
            skipped=None if skipped is None else tuple(SkippedRange.from_json(r) for r in skipped),
            moments_reset_steps=None if resets is None else tuple(resets),
            free=None if free is None else Free.from_json(free),
            from_arguments=tuple(data.get("from_arguments") or ()),
            by_script=tuple(data.get("by_script") or ()),
        )


def lr_warmup_steps(baseline: Baseline) -> tuple[int, int] | None:
    """The steps at which the LR warmup begins and ends; None where there is none, or where it can't be counted."""
    lr, batch, full = baseline.lr, baseline.batch_size, baseline.full_seqlen
    if lr is None or not lr.warmup:
        return None
    if lr.unit == "steps":
        return lr.anchor, lr.warmup_end
    if batch is None or full is None:
        return None
    track = Track(full=full, batch=batch, seqlen=baseline.seqlen, shorten=baseline.shorten or "truncate")
    begin, end = (track.reach(Position(), **{lr.unit: count}).step for count in (lr.anchor, lr.warmup_end))
    return begin, end


_SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lr": LrSchedule.from_json,
    "seqlen": SeqlenSchedule.from_json,
    "batch_size": BatchSizeSchedule.from_json,
    "random_ltd": RandomLtdSchedule.from_json,
    "curriculum": CurriculumSchedule.from_json,
}
"""Field -> what reads it."""

_PLAIN = (
    "seed",
    "full_seqlen",
    "shorten",
    "total_steps",
    "total_tokens",
    "total_samples",
    "lr_from_start",
    "parameters",
    "adam_beta1",
    "adam_beta2",
    "weight_decay",
    "clip_grad",
    "precision",
    "loss_scale",
)
