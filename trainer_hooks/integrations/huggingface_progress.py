"""Where a training of Hugging Face's Trainer stands: what it was fed, and what its checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.training_settings import SkippedRange
from trainer_hooks.gpt.order import Reseed


@dataclass(slots=True, kw_only=True)
class Fed:
    """What the model was trained on, over all ranks: by the batches' shapes, padding included, without a sync.

    Each of the data-parallel `ranks` counts as much as this one. `samples` and `tokens` are of the whole run, None if
    an earlier part was not counted; `step_samples` and `seqlen` (of the longest micro-batch) of the step under way.
    """

    ranks: int
    samples: int | None
    tokens: int | None
    step_samples: int = 0
    seqlen: int | None = None

    def micro_batch(self, samples: int, seqlen: int) -> None:
        """One micro-batch goes into the model on this rank."""
        whole = samples * self.ranks
        self.step_samples += whole
        self.seqlen = max(seqlen, self.seqlen or 0)
        if self.samples is not None:
            self.samples += whole
        if self.tokens is not None:
            self.tokens += whole * seqlen


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a checkpoint's trainer_state.json holds for the next attempt. None is what was not counted."""

    attempt: int | None = None
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    loss_minimum: LossMinimum | None = None
    applied_once: tuple[str, ...] = ()
    moments_reset_steps: tuple[int, ...] = ()
    reseeds: tuple[Reseed, ...] = ()
    skipped: tuple[SkippedRange, ...] = ()
    lengths: Mapping[str, Any] | None = None
    """Where a schedule stands that follows the validations."""

    def to_json(self) -> dict[str, Any]:
        """Without what is not there."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        found["loss_minimum"] = [list(pair) for pair in (self.loss_minimum or LossMinimum()).state()]
        found["skipped"] = [part.to_json() for part in self.skipped]
        return {name: value for name, value in found.items() if value is not None and value not in ([], ())}

    @classmethod
    def of(cls, left: Mapping[str, Any] | None) -> Progress:
        """ValueError where it can't be read."""
        if left is None:
            return cls()
        counts = {name: left.get(name) for name in ("attempt", "consumed_samples", "consumed_tokens")}
        for name, count in counts.items():
            if count is not None and not isinstance(count, int):
                raise ValueError(f"{name} in trainer_state.json should be a whole number, not {count!r}")
        return cls(
            **counts,
            loss_minimum=LossMinimum.load([(seqlen, float(loss)) for seqlen, loss in left.get("loss_minimum", ())]),
            applied_once=tuple(map(str, left.get("applied_once", ()))),
            moments_reset_steps=tuple(map(int, left.get("moments_reset_steps", ()))),
            reseeds=tuple((int(at), int(seed)) for at, seed in left.get("reseeds", ())),
            skipped=tuple(SkippedRange.from_json(part) for part in left.get("skipped", ())),
            lengths=left.get("lengths"),
        )
