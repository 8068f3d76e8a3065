"""What is known of an attempt's start: what its program printed, and what its first line of readings adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.sources.events import Reading
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import LrSchedule

__all__ = ["facts_of_start"]

_PRINTED = 6e-4
"""Logs print an LR to four digits: so far may it lie from what it stands for, as a part of it."""


def facts_of_start(printed: Mapping[str, Any], first: Reading, interval: int) -> dict[str, Any]:
    """Fields of RunStarted. `printed` are those that the program has said itself, `resumed_from` among them.

    The first sample's index is counted back from the first line: it is known where the batch did not grow in between.
    """
    facts = dict(printed)
    resumed = facts.get("resumed_from") or 0
    consumed, batch = first.fields.get("consumed_samples"), first.fields.get("global_batch_samples")
    steps = first.step - resumed
    if consumed is not None and batch is not None and 0 < steps <= interval and consumed >= batch * steps:
        facts.setdefault("first_sample_index", consumed - batch * steps)
    facts["lr"] = _lr(facts.get("lr_schedule"), first, resumed)
    facts.setdefault("seqlen", first.fields.get("seqlen"))
    if facts.get("precision") == "fp16":
        facts.setdefault("loss_scale", first.fields.get("loss_scale"))
    if facts.get("total_steps") is None:
        facts["total_steps"] = first.total_steps
    return facts


def _lr(schedule: Mapping[str, Any] | None, first: Reading, resumed: int) -> float | None:
    """The LR of the first step: exact where the schedule gives what the first line shows, else what it shows."""
    shown: float | None = first.fields.get("lr")
    if schedule is None or shown is None:
        return shown
    try:
        lr = LrSchedule.from_json(dict(schedule))
    except ConfigError:
        return shown
    if abs(lr.lr(step=first.step) - shown) > _PRINTED * abs(shown):
        return shown
    return lr.lr(step=resumed + 1)
