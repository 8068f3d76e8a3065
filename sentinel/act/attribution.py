"""Which rollback an attempt was started for, where its trainer only logs: the label of its job says it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sentinel.plan.incident import Incident
from sentinel.plan.observation import JobsSeen
from sentinel.vocabulary.sample import RunStarted

__all__ = ["rollback_of"]


def rollback_of(started: RunStarted, jobs: JobsSeen, incidents: Iterable[Incident]) -> str | None:
    """The rollback whose job writes now, if the attempt has begun since that was started; None where nobody can say.

    By the attempts' numbers: a log's times are another clock's than the daemon's. An attempt that is numbered anew (a
    log that was rotated before the daemon was started again) is taken for it where it has no time of its own and
    resumed from the rollback's own target.
    """
    labels = {writer.rollback for writer in jobs.writers if not writer.pending}
    label = labels.pop() if len(labels) == 1 else None
    rollback = next((r for i in incidents for r in i.rollbacks if r.id == label), None)
    if label is None or rollback is None or rollback.last_start_unix_s is None:
        return None
    if rollback.last_start_attempt is not None and started.attempt > rollback.last_start_attempt:
        return label
    if math.isfinite(started.time_unix_s):
        return None
    return label if (started.resumed_from or 0) == rollback.overrides.anchor.global_step else None
