"""Where a finding of the past would have had the run rolled back to."""

from __future__ import annotations

from collections.abc import Sequence

from sentinel.judge.events import Event

__all__ = ["rollback_to"]


def rollback_to(event: Event, saved_steps: Sequence[int], margin_steps: int) -> int | None:
    """The last saved step at or before onset - margin, as `choose_target` takes it; 0 is from scratch.

    Where nothing is known of what was saved, onset - margin itself: any checkpoint at or before it will do. None where
    no rollback is recommended.
    """
    if not event.recommend_rollback:
        return None
    limit = max(0, event.onset_step - margin_steps)
    if not saved_steps:
        return limit
    return max((step for step in saved_steps if step <= limit), default=0)
