"""How far an adaptive warmup has come: kept in the checkpoint's client state, since no step can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.numbers import to_json, to_number
from sentinel.vocabulary.pacing.described import fields_of

__all__ = ["AdaptiveState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveState:
    """What the validations since the anchor have decided."""

    length: int
    """Tokens per sample from here on."""

    best_perplexity: float = math.inf
    """The lowest validation perplexity since the anchor, exp of the loss in nats; inf before the first finite one."""

    validated_step: int = 0
    """The completed step of the last validation that was counted: one that is repeated after a resume counts once."""

    anchor_step: int = 0
    """The anchor of the schedule that it belongs to: a schedule that has been re-anchored begins anew."""

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(fields_of(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AdaptiveState:
        """The state that to_json gave. ConfigError when it is something else."""
        whole = ("length", "validated_step", "anchor_step")
        if not isinstance(data, Mapping) or data.keys() != {*whole, "best_perplexity"}:
            raise ConfigError(f"the state of an adaptive warmup has {', '.join(whole)} and best_perplexity: {data!r}")
        if wrong := [key for key in whole if type(data[key]) is not int]:
            raise ConfigError(f"{wrong[0]} of an adaptive warmup should be a whole number, not {data[wrong[0]]!r}")
        try:
            best = to_number(data["best_perplexity"], "best_perplexity of an adaptive warmup")
        except LineError as error:
            raise ConfigError(str(error)) from error
        if best is None or math.isnan(best):
            raise ConfigError("best_perplexity of an adaptive warmup should be a number, not nan or null")
        return cls(best_perplexity=best, **{key: data[key] for key in whole})
