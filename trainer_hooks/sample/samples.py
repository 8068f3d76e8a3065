"""A step's sample: what rank 0 knows of it by itself, and what all ranks together have read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import LayerVariance, Sample
from trainer_hooks.sample.gathering import Layers
from trainer_hooks.sample.reading import Reading, loss_scale

__all__ = ["Position", "Samples", "StepFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What the engine does not know of the step that was just made; None is left out of the sample."""

    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seqlen: int | None = None
    kept_tokens: int | None = None
    curriculum_share: float | None = None
    lr: float | None = None
    lr_warmup_steps: int | None = None
    global_batch_samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What rank 0 knows of a step without any reduction, as it was when the step was made."""

    global_step: int
    time_unix_s: float
    step_time_s: float | None
    lr: float | None
    loss_scale: float | None
    skipped: bool
    global_batch_samples: int | None
    position: Position


class Samples:
    """Makes the samples of one attempt, in the order of its steps, on rank 0."""

    def __init__(self, engine: Any, position: Callable[[], Position] | None) -> None:
        self._engine = engine
        self._position = position
        self._stepped_at: float | None = None
        self._tokens: int | None = None
        self._lr: float | None = None

    def update_coming(self) -> None:
        """Before each update: its learning rate, which a schedule within the step changes."""
        self._lr = float(self._engine.optimizer.param_groups[0]["lr"])

    def facts(self) -> StepFacts:
        """Of the step that was just made."""
        engine, now = self._engine, time.time()
        step_time_s = now - self._stepped_at if self._stepped_at is not None else None
        self._stepped_at = now
        return StepFacts(
            global_step=engine.global_steps,
            time_unix_s=now,
            step_time_s=step_time_s,
            lr=self._lr,
            loss_scale=loss_scale(engine.optimizer),
            skipped=not engine.was_step_applied() if hasattr(engine, "was_step_applied") else False,
            global_batch_samples=engine.train_batch_size(),
            position=self._position() if self._position is not None else Position(),
        )

    def sample(self, attempt: int, facts: StepFacts, reading: Reading, minimum: LossMinimum) -> Sample:
        """Of a step that all ranks have read."""
        position = facts.position
        return Sample(
            attempt=attempt,
            global_step=facts.global_step,
            time_unix_s=facts.time_unix_s,
            loss=reading.loss,
            loss_ratio=minimum.push(reading.loss, position.seqlen),
            adam_variance_l1=reading.adam_variance_l1,
            adam_variance_max=reading.adam_variance_max,
            grad_norm=reading.grad_norm,
            update_norm=None if facts.skipped else reading.update_norm,
            momentum_l2=reading.momentum_l2,
            param_norm=reading.param_norm,
            loss_spread=reading.loss_spread,
            grad_norm_spread=reading.grad_norm_spread,
            loss_scale=facts.loss_scale,
            lr=position.lr if position.lr is not None else facts.lr,
            seqlen=position.seqlen,
            kept_tokens=position.kept_tokens,
            curriculum_share=position.curriculum_share,
            lr_warmup_steps=position.lr_warmup_steps,
            skipped=facts.skipped,
            step_time_s=facts.step_time_s,
            tokens_per_s=self._tokens_per_s(facts),
            global_batch_samples=position.global_batch_samples or facts.global_batch_samples,
            consumed_samples=position.consumed_samples,
            consumed_tokens=position.consumed_tokens,
        )

    def layer_variance(self, attempt: int, facts: StepFacts, names: tuple[str, ...], layers: Layers) -> LayerVariance:
        """Of the same step, where the layers were read."""
        return LayerVariance(
            attempt=attempt,
            global_step=facts.global_step,
            time_unix_s=facts.time_unix_s,
            layers=names,
            adam_variance_l1=layers.l1,
            adam_variance_max=layers.largest,
        )

    def _tokens_per_s(self, facts: StepFacts) -> float | None:
        before, tokens = self._tokens, facts.position.consumed_tokens
        self._tokens = tokens
        if before is None or tokens is None or not facts.step_time_s:
            return None
        return float((tokens - before) / facts.step_time_s)
