"""What a new attempt has shown so far, gathered from the history for the proof of its changes."""

from __future__ import annotations

from itertools import islice

from sentinel.judge.history import Attempt, History
from sentinel.plan.evidence import FIRST_STEPS, Evidence

__all__ = ["evidence"]


def evidence(history: History, attempt: Attempt, *, before: int) -> Evidence | None:
    """The attempt's start and first steps; the same steps of attempt `before`. None before its start is reported."""
    if attempt.started is None:
        return None
    samples = tuple(islice(history.samples(attempt), FIRST_STEPS))
    earlier = history.attempts.get(before)
    steps = {sample.global_step for sample in samples}
    lr_before: dict[int, float] = {}
    if earlier is not None and earlier.number != attempt.number and len(steps) == FIRST_STEPS:
        for sample in history.lineage(earlier):
            if sample.global_step in steps and sample.lr is not None:
                lr_before[sample.global_step] = sample.lr
            if sample.global_step > max(steps):
                break
    report = earlier.started if earlier is not None else None
    return Evidence(started=attempt.started, samples=samples, before=report, lr_before=lr_before)
