"""The part of overrides.json that holds from the anchor on, at every start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides_keys import number, only, table, whole
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    LrSchedule,
    RandomLtdSchedule,
    SeqlenSchedule,
    Shortening,
    shortening,
)
from sentinel.vocabulary.skipping import SkippedRange

__all__ = ["Free", "Standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Changes that sentinel has no word for: the trainer gets them as they are, and echoes those that it has made."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of environment variables."""

    options: tuple[str, ...] = ()
    """Options of the trainer's command line, each with its value, `--flag=value`; a switch is `--flag`."""

    removed: tuple[str, ...] = ()
    """Options that the trainer no longer gets, each as `--flag`; left out of JSON where there are none."""

    def to_json(self) -> dict[str, Any]:
        """As overrides.json holds it, and as run_started echoes it."""
        removed = {"removed": list(self.removed)} if self.removed else {}
        return {"environment": dict(self.environment), "options": list(self.options)} | removed

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Free:
        """What to_json gave. OverridesError names what is wrong."""
        only(data, "free", {"environment", "options", "removed"})
        environment = table(data, "environment")
        if not all(isinstance(value, str) for value in environment.values()):
            raise OverridesError(f"environment should hold strings, not {environment!r}")
        lists = {key: data.get(key, []) for key in ("options", "removed")}
        for key, told in lists.items():
            if not isinstance(told, list) or not all(isinstance(option, str) for option in told):
                raise OverridesError(f"{key} should be a list of strings, not {told!r}")
        return cls(environment=environment, options=tuple(lists["options"]), removed=tuple(lists["removed"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Changes that hold from the anchor on, at every start; None leaves what the trainer's own settings say."""

    lr: LrSchedule | None = None
    """Replaces the run's LR schedule."""

    seqlen: SeqlenSchedule | None = None
    """Replaces the run's sequence-length schedule; of any pacing."""

    shorten: Shortening | None = None
    """How a batch gets shorter while the sequence length warms up."""

    batch_size: BatchSizeSchedule | None = None
    """Replaces the run's batch-size schedule."""

    random_ltd: RandomLtdSchedule | None = None
    """Replaces the run's random-LTD schedule."""

    curriculum: CurriculumSchedule | None = None
    """Replaces the curriculum metrics that pace the run's data; one without metrics ends it."""

    total_tokens: int | None = None
    """Ends the run at so many effective tokens, in place of the steps or tokens of its own settings."""

    adam_beta1: float | None = None
    """Decay of Adam's first moment, dimensionless, for all parameters. What the checkpoint brings back gives way."""

    adam_beta2: float | None = None
    """Decay of Adam's second moment, dimensionless, for all parameters. What the checkpoint brings back gives way."""

    weight_decay: float | None = None
    """Weight decay of the parameters that are decayed at all; those at 0 stay there."""

    clip_grad: float | None = None
    """Largest global L2 norm of the gradient; above it, it is scaled down. 0 does not clip."""

    skipped: tuple[SkippedRange, ...] = ()
    """Samples that earlier decisions left out: they stay out, also when the run is rolled back to before them."""

    free: Free | None = None
    """None is no such change."""

    def to_json(self) -> dict[str, Any]:
        """As overrides.json holds it: what is None stays out."""
        told: dict[str, Any] = {
            "lr": self.lr and self.lr.to_json(),
            "seqlen": self.seqlen and self.seqlen.to_json(),
            "shorten": self.shorten,
            "batch_size": self.batch_size and self.batch_size.to_json(),
            "random_ltd": self.random_ltd and self.random_ltd.to_json(),
            "curriculum": None if self.curriculum is None else self.curriculum.to_json(),
            "total_tokens": self.total_tokens,
            **{key: getattr(self, key) for key in _ADAM},
            "skipped": [r.to_json() for r in self.skipped] or None,
            "free": self.free and self.free.to_json(),
        }
        return {key: value for key, value in told.items() if value is not None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Standing:
        """What to_json gave. ConfigError (an OverridesError where the key is our own) names what is wrong."""
        only(data, "standing", {"shorten", "total_tokens", *_SCHEDULES, *_ADAM, "skipped", "free"})
        schedules = {key: read(table(data, key)) for key, read in _SCHEDULES.items() if data.get(key) is not None}
        skipped = data.get("skipped", [])
        if not isinstance(skipped, list):
            raise OverridesError(f"skipped should be a list, not {skipped!r}")
        return cls(
            **schedules,
            shorten=shortening(data.get("shorten")),
            total_tokens=whole(data, "total_tokens"),
            adam_beta1=number(data, "adam_beta1", *_ADAM["adam_beta1"]),
            adam_beta2=number(data, "adam_beta2", *_ADAM["adam_beta2"]),
            weight_decay=number(data, "weight_decay", *_ADAM["weight_decay"]),
            clip_grad=number(data, "clip_grad", *_ADAM["clip_grad"]),
            skipped=tuple(SkippedRange.from_json(r) for r in skipped),
            free=Free.from_json(table(data, "free")) if "free" in data else None,
        )


_SCHEDULES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lr": LrSchedule.from_json,
    "seqlen": SeqlenSchedule.from_json,
    "batch_size": BatchSizeSchedule.from_json,
    "random_ltd": RandomLtdSchedule.from_json,
    "curriculum": CurriculumSchedule.from_json,
}
"""Key of `standing` -> what reads it."""

_ADAM = {
    "adam_beta1": (0.0, 1.0),
    "adam_beta2": (0.0, 1.0),
    "weight_decay": (0.0, math.inf),
    "clip_grad": (0.0, math.inf),
}
"""Key of `standing` -> the least that it may be, and what it has to stay below."""
