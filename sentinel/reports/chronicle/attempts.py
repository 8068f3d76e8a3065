"""One row for each attempt: what it was started with, what became of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.judge.history import Attempt, History
from sentinel.plan.incident import Incident
from sentinel.vocabulary.loss_ratio import LossMinimum

__all__ = ["AttemptRow", "attempt_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt, as a table shows it."""

    attempt: int
    mitigation: str | None
    """The rung that it was started with; None for the first."""

    resumed_from: int | None
    first_step: int | None
    last_step: int | None
    steps_loss_ratio_gt_1_2: int
    max_loss_ratio: float
    onset_step: int | None
    """Early end of the onset; None where it did not diverge."""

    alarm_step: int | None
    verdict: str
    validation_loss: float | None
    """The last one, nats."""


def attempt_rows(
    history: History, incidents: tuple[Incident, ...], events: Sequence[dict[str, Any]]
) -> tuple[AttemptRow, ...]:
    """The attempts in their order."""
    return tuple(_row(attempt, incidents, events) for attempt in history.attempts.values())


def _row(attempt: Attempt, incidents: tuple[Incident, ...], events: Sequence[dict[str, Any]]) -> AttemptRow:
    rollbacks = {r.id: r for i in incidents for r in i.rollbacks}
    started = attempt.started
    rollback = rollbacks.get(started.rollback) if started and started.rollback else None
    ended = [e for e in events if e["event"] in ("opened", "rung_failed") and e.get("attempt") == attempt.number]
    onset = ended[0].get("onset_range") if ended else None
    ratios = _ratios(attempt)
    steps = [s.global_step for s in attempt.samples]
    return AttemptRow(
        attempt=attempt.number,
        mitigation=rollback.rung if rollback else None,
        resumed_from=started.resumed_from if started else None,
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        steps_loss_ratio_gt_1_2=sum(r > 1.2 for r in ratios),
        max_loss_ratio=max(ratios, default=math.nan),
        onset_step=onset[0] if onset else None,
        alarm_step=ended[0].get("alarm_step") if ended else None,
        verdict=_verdict(attempt, ended, incidents),
        validation_loss=attempt.validations[-1].loss if attempt.validations else None,
    )


def _ratios(attempt: Attempt) -> list[float]:
    """Loss ratios as the trainer reported them; counted anew where it did not."""
    minimum = LossMinimum()
    return [s.loss_ratio if s.loss_ratio is not None else minimum.push(s.loss, s.seqlen) for s in attempt.samples]


def _verdict(attempt: Attempt, ended: list[dict[str, Any]], incidents: tuple[Incident, ...]) -> str:
    if ended:
        did_diverge = ended[0]["event"] == "opened" or ended[0].get("alarm_step") is not None
        return "diverged" if did_diverge else "not recovered"
    for incident in incidents:
        current = incident.current
        mine = attempt.started is not None and current is not None and attempt.started.rollback == current.id
        if mine and incident.outcome == "recovered":
            return "recovered"
    return "finished" if attempt.end_reason == "finished" else "cut short"
