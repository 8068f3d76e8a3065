"""Which rollback an attempt was started for, where its trainer only logs: the label of its job says it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sentinel.plan.incident import Incident
from sentinel.plan.run_state import JobsSeen
from sentinel.vocabulary.sample import RunStarted

__all__ = ["rollback_of"]


def rollback_of(started: RunStarted, jobs: JobsSeen, incidents: Iterable[Incident]) -> str | None:
    """The rollback whose job writes now, if the attempt has begun since that was started; None where nobody can say.

    An attempt whose beginning has no time (read after the daemon was started again) is taken for it where it resumed
    from the rollback's own target.
    """
    labels = {writer.rollback for writer in jobs.writers if not writer.pending}
    label = labels.pop() if len(labels) == 1 else None
    rollback = next((r for i in incidents for r in i.rollbacks if r.id == label), None)
    if label is None or rollback is None or rollback.last_start_unix_s is None:
        return None
    if math.isfinite(started.time_unix_s):
        return label if started.time_unix_s >= rollback.last_start_unix_s else None
    return label if (started.resumed_from or 0) == rollback.overrides.anchor.global_step else None
