"""What a demo showed: one row for each attempt, the correlation, and the picture's data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.judge.correlation import Correlations, correlate
from sentinel.judge.history import Attempt, History
from sentinel.plan.incident import Incident, fold
from sentinel.vocabulary.loss_ratio import LossMinimum

__all__ = ["AttemptRow", "Report", "report_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt of the demo, as its table shows it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The demo's outcome."""

    seed: int
    recovered: bool
    diverged: bool
    wall_s: float
    final_validation_loss: float | None
    attempts: tuple[AttemptRow, ...]
    correlations: Correlations
    history: History
    incidents: tuple[Incident, ...]
    plot: Path

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `sentinel demo --json`."""
        names = [n for n in AttemptRow.__dataclass_fields__ if n != "validation_loss"]
        return {
            "seed": self.seed,
            "recovered": self.recovered,
            "wall_s": round(self.wall_s, 1),
            "final_validation_loss": self.final_validation_loss,
            "attempts": [
                {n: getattr(row, n) for n in names} | {"validation_loss": row.validation_loss} for row in self.attempts
            ],
            "plot": str(self.plot),
        }


def report_of(*, seed: int, state_dir: Path, wall_s: float, plot: Path) -> Report:
    """Reads a finished demo's journals and incident log."""
    history = History()
    for record in Journals(state_dir).poll():
        history.push(record)
    events = IncidentLog(state_dir / "incidents.jsonl").read()
    incidents = fold(events)
    rows = tuple(_row(a, incidents, events) for a in history.attempts.values())
    samples = [s for a in history.attempts.values() for s in a.samples]
    return Report(
        seed=seed,
        recovered=bool(incidents) and all(i.outcome == "recovered" for i in incidents),
        diverged=bool(incidents),
        wall_s=wall_s,
        final_validation_loss=rows[-1].validation_loss if rows else None,
        attempts=rows,
        correlations=correlate(samples),
        history=history,
        incidents=incidents,
        plot=plot,
    )


def _row(attempt: Attempt, incidents: tuple[Incident, ...], events: list[dict[str, Any]]) -> AttemptRow:
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
    return "finished" if attempt.finished and attempt.finished.reason == "finished" else "cut short"
