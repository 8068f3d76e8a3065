"""A step's sample: what rank 0 knows without a reduction, and what all ranks together have read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import Sample
from trainer_hooks.sample.reading import Reading, loss_scale

__all__ = ["Position", "StepFacts", "make_sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What the engine does not know of the step that was just made, as the fields of Sample; None is left out."""

    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seqlen: int | None = None
    kept_tokens: int | None = None
    curriculum_share: float | None = None
    lr: float | None = None
    lr_warmup_steps: int | None = None
    global_batch_samples: int | None = None


class StepFacts:
    """Reads the fields of Sample that need no reduction, on rank 0, in the order of the steps."""

    def __init__(self, engine: Any, position: Callable[[], Position] | None) -> None:
        self._engine = engine
        self._position = position
        self._stepped_at: float | None = None
        self._tokens: int | None = None
        self._lr: float | None = None

    def update_coming(self) -> None:
        """Before each update: reads its learning rate, which a schedule within the step changes."""
        self._lr = float(self._engine.optimizer.param_groups[0]["lr"])

    def read(self) -> dict[str, Any]:
        """{field of Sample: value} of the step that was just made."""
        engine, now = self._engine, time.time()
        step_time_s = now - self._stepped_at if self._stepped_at is not None else None
        self._stepped_at = now
        facts = {
            "global_step": engine.global_steps,
            "time_unix_s": now,
            "step_time_s": step_time_s,
            "lr": self._lr,
            "loss_scale": loss_scale(engine.optimizer),
            "skipped": not engine.was_step_applied() if hasattr(engine, "was_step_applied") else False,
            "global_batch_samples": engine.train_batch_size(),
        }
        position = self._position() if self._position is not None else Position()
        stated = ((name, getattr(position, name)) for name in Position.__slots__)
        facts |= {name: value for name, value in stated if value is not None}
        before, self._tokens = self._tokens, position.consumed_tokens
        if before is not None and self._tokens is not None and step_time_s:
            facts["tokens_per_s"] = float((self._tokens - before) / step_time_s)
        return facts


def make_sample(attempt: int, facts: Mapping[str, Any], reading: Reading, minimum: LossMinimum) -> Sample:
    """The sample of a step that all ranks have read; `minimum` takes its loss up."""
    readings = {name: getattr(reading, name) for name in Reading.__slots__}
    if facts["skipped"]:
        readings["update_norm"] = None
    ratio = minimum.push(reading.loss, facts.get("seqlen"))
    return Sample(attempt=attempt, loss_ratio=ratio, **facts, **readings)
