"""The one-shot changes of overrides.json, for the reference trainer."""

from __future__ import annotations

from typing import Any

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Overrides
from trainer_hooks.data.order import CurriculumOrder
from trainer_hooks.gpt.checkpoint import Progress
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.restart import due
from trainer_hooks.sample.adam_settings import apply_once


def apply_one_shot(
    overrides: Overrides | None,
    progress: Progress,
    order: DataOrder | CurriculumOrder,
    engine: Any,
    precision: str,
) -> None:
    """After the checkpoint is loaded: only where the start resumes exactly at the anchor, and never a second time;
    `progress` keeps that they were made. OverridesError where it can't be done."""
    once = due(overrides, progress, progress.step)
    if once is None:
        return
    order.change(progress.consumed_samples, seed=once.seed, skip_samples=once.skip_samples)
    if once.loss_scale is not None and precision != "fp16":
        raise OverridesError(f"overrides.json: loss_scale: only fp16 has one, not {precision}")
    apply_once(once, engine, progress, progress.step)
