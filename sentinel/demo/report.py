"""What a demo showed: one row for each attempt, the correlation, and the picture's data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.judge.analysis.correlation.columns import correlate
from sentinel.judge.analysis.correlation.table import Correlations
from sentinel.judge.history import History
from sentinel.plan.incident import Incident
from sentinel.plan.incident_events import fold
from sentinel.reports.chronicle.attempts import AttemptRow, attempt_rows

__all__ = ["Report", "report_of"]


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
    calm_seeds: tuple[int, ...] = ()
    """Seeds that were trained to the end and did not diverge, in their order."""

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `sentinel demo --json`."""
        names = [n for n in AttemptRow.__dataclass_fields__ if n != "validation_loss"]
        return {
            "seed": self.seed,
            "calm_seeds": list(self.calm_seeds),
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
    rows = attempt_rows(history, incidents, events)
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
