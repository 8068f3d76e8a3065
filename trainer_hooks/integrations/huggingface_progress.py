"""Where a training of Hugging Face's Trainer stands: what it was fed, and what its checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.codec import Form, fields_of, read
from sentinel.vocabulary.errors import ConfigError
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


_FORM = Form(error=ConfigError, name="the callback's state", ignores_unknown=True)


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a checkpoint's trainer_state.json holds for the next attempt. None is what was not counted."""

    attempt: int | None = None
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    loss_minimum: tuple[tuple[int | None, float], ...] = ()  # as LossMinimum.state() gives it
    applied_once: tuple[str, ...] = ()
    moments_reset_steps: tuple[int, ...] = ()
    reseeds: tuple[Reseed, ...] = ()
    skipped: tuple[SkippedRange, ...] = ()
    lengths: Mapping[str, Any] | None = None
    """Where a schedule stands that follows the validations."""

    def to_json(self) -> dict[str, Any]:
        """Without what is not there."""
        return {name: value for name, value in fields_of(self, without_none=True).items() if value != []}

    @classmethod
    def of(cls, left: Mapping[str, Any] | None) -> Progress:
        """ConfigError where it can't be read."""
        return cls() if left is None else read(cls, left, "trainer_state.json", _FORM)
