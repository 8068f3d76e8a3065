"""How far an adaptive warmup has come: kept in the checkpoint's client state, since no step can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from sentinel.vocabulary.codec import Described, fields_of
from sentinel.vocabulary.numbers import to_json
from sentinel.vocabulary.ranges import COUNT, POSITIVE_OR_INF


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveState(Described):
    """What the validations since the anchor have decided."""

    length: Annotated[int, COUNT]  # Tokens per sample from here on
    # The lowest validation perplexity since the anchor, exp of the loss in nats; inf before the first finite one.
    best_perplexity: Annotated[float, POSITIVE_OR_INF]
    # The completed step of the last validation that was counted: one that is repeated after a resume counts once.
    validated_step: Annotated[int, COUNT]
    # The anchor of the schedule that it belongs to: a schedule that has been re-anchored begins anew.
    anchor_step: Annotated[int, COUNT]

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(fields_of(self)))
