"""What the run ran with when the incident began, as the incident log records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.overrides import Free
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from sentinel.vocabulary.skipping import SkippedRange

__all__ = ["Baseline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the run ran with when the incident began: each rung changes this, not what the last rung left.

    None is what the trainer has not reported.
    """

    seed: int | None = None
    lr: LrSchedule | None = None
    seqlen: SeqlenSchedule | None = None
    full_seqlen: int | None = None
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

    def to_json(self) -> dict[str, Any]:
        """As `opened` records it."""
        return {
            **{key: getattr(self, key) for key in _PLAIN},
            "lr": self.lr.to_json() if self.lr else None,
            "seqlen": self.seqlen.to_json() if self.seqlen else None,
            "skipped": None if self.skipped is None else [r.to_json() for r in self.skipped],
            "moments_reset_steps": self.moments_reset_steps,
            "free": self.free.to_json() if self.free else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Baseline:
        """The baseline that to_json gave, also that of an older version. ConfigError, KeyError for anything else."""
        lr, seqlen, skipped = data["lr"], data["seqlen"], data.get("skipped")
        resets, free = data.get("moments_reset_steps"), data.get("free")
        return cls(
            **{key: data.get(key) for key in _PLAIN},
            lr=None if lr is None else LrSchedule.from_json(lr),
            seqlen=None if seqlen is None else SeqlenSchedule.from_json(seqlen),
            skipped=None if skipped is None else tuple(SkippedRange.from_json(r) for r in skipped),
            moments_reset_steps=None if resets is None else tuple(resets),
            free=None if free is None else Free.from_json(free),
        )


_PLAIN = (
    "seed",
    "full_seqlen",
    "adam_beta1",
    "adam_beta2",
    "weight_decay",
    "clip_grad",
    "precision",
    "loss_scale",
)
