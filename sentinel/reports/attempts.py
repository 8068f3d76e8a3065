"""One row for each attempt of a run: what it was started with, and what became of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sentinel.judge.history import Attempt
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import Opened
from sentinel.plan.incident.log_outcomes import RungFailed
from sentinel.reports.past import Past


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    attempt: int
    mitigation: str | None  # the rung that it was started with; None for the first
    resumed_from: int | None
    first_step: int | None
    last_step: int | None
    steps_loss_ratio_gt_1_2: int
    max_loss_ratio: float
    onset_step: int | None  # early end of the onset; None where it did not diverge
    alarm_step: int | None
    verdict: str
    validation_loss: float | None  # the last one, nats


def attempt_rows(past: Past) -> tuple[AttemptRow, ...]:
    """What each attempt was started with and what became of it, in the order of the attempts."""
    return tuple(_row(attempt, past) for attempt in past.history.attempts.values())


def _row(attempt: Attempt, past: Past) -> AttemptRow:
    rollbacks = {name: r for i in past.incidents for r in i.rollbacks for name in r.names}
    started = attempt.started
    rollback = rollbacks.get(started.rollback) if started and started.rollback else None
    ends = (e for e in past.events if isinstance(e, Opened | RungFailed) and e.attempt == attempt.number)
    ended = next(ends, None)
    onset = ended.onset_range if ended is not None else None
    steps, ratios = past.curve(attempt.number, "loss_ratio")
    return AttemptRow(
        attempt=attempt.number,
        mitigation=rollback.rung if rollback else None,
        resumed_from=started.resumed_from if started else None,
        first_step=int(steps.min()) if len(steps) else None,
        last_step=int(steps.max()) if len(steps) else None,
        steps_loss_ratio_gt_1_2=int((ratios > 1.2).sum()),
        max_loss_ratio=math.nan if np.isnan(ratios).all() else float(np.nanmax(ratios)),
        onset_step=onset[0] if onset else None,
        alarm_step=ended.alarm_step if ended is not None else None,
        verdict=_verdict(attempt, ended, past.incidents),
        validation_loss=attempt.validations[-1].loss if attempt.validations else None,
    )


def _verdict(attempt: Attempt, ended: Opened | RungFailed | None, incidents: tuple[Incident, ...]) -> str:
    if ended is not None:
        did_diverge = isinstance(ended, Opened) or ended.alarm_step is not None
        return "diverged" if did_diverge else "not recovered"
    cured = [i.current.id for i in incidents if i.outcome == "recovered" and i.current is not None]
    if attempt.started is not None and attempt.started.rollback in cured:
        return "recovered"
    return "finished" if attempt.end_reason == "finished" else "cut short"
