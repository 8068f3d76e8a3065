"""What the newest attempt has measured, as the plan needs it."""

from __future__ import annotations

from statistics import median

from sentinel.judge.history import Attempt


def step_time_s(attempt: Attempt | None) -> float | None:
    """Median seconds of the last hundred steps; None where they were not measured."""
    times = [s.step_time_s for s in attempt.samples[-100:] if s.step_time_s is not None] if attempt else []
    return median(times) if times else None
