"""All that the page shows, as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from sentinel.judge.analysis.correlation.columns import correlate_readings
from sentinel.judge.analysis.correlation.table import Correlations
from sentinel.reports.chronicle.attempts import AttemptRow, attempt_rows
from sentinel.reports.triage.curves import charts
from sentinel.reports.triage.moments import moments
from sentinel.reports.triage.past import Asked, Past
from sentinel.reports.triage.story import told
from sentinel.reports.triage.suspects import suspects
from sentinel.reports.triage.timeline import timeline

__all__ = ["SCHEMA", "document"]

SCHEMA = 1
"""Raised when a key changes its meaning."""


def document(past: Past, asked: Asked, *, now_unix_s: float, incident: str | None = None) -> dict[str, Any]:
    """The whole page's data; `incident` is the one that is shown first, else the last one."""
    verdict = timeline(past, asked)
    rows = attempt_rows(past.history, past.incidents, [dict(event) for event in past.events])
    incidents = [told(one, past, asked) | {"suspects": suspects(one, past, asked.texts)} for one in past.incidents]
    return {
        "schema": SCHEMA,
        "run": asked.run,
        "made_unix_s": now_unix_s,
        "samples": past.samples,
        "unreadable": past.unreadable,
        "notes": list(past.notes),
        "standing": {"verdict": verdict.verdict, "severity": verdict.severity, "reason": verdict.reason}
        | _standing(past),
        "attempts": [asdict(_counted(row, past)) for row in rows],
        "findings": list(verdict.findings),
        "incidents": incidents,
        "shown_incident": incident or (past.incidents[-1].id if past.incidents else None),
        "correlations": _correlations(correlate_readings(past.stretches)) if past.stretches else None,
        "charts": charts(past),
        "moments": moments(past),
    }


def _standing(past: Past) -> dict[str, Any]:
    if not past.stretches:
        return {"attempt": None, "global_step": None, "loss": None, "loss_ratio": None, "time_unix_s": None}
    last = past.stretches[-1]
    names = ("loss", "loss_ratio", "time_unix_s", "lr", "consumed_samples", "consumed_tokens")
    readings = {name: float(last.columns[name][-1]) if last.has(name)[-1] else None for name in names}
    return {"attempt": last.attempt, "global_step": int(last.steps[-1])} | readings


def _counted(row: AttemptRow, past: Past) -> AttemptRow:
    """With what the samples say, which the history of attempts does not hold here."""
    stretches = past.of_attempt(row.attempt)
    if not stretches:
        return row
    steps = np.concatenate([r.steps for r in stretches])
    ratio = np.concatenate([r.values("loss_ratio") for r in stretches])
    return replace(
        row,
        first_step=int(steps.min()),
        last_step=int(steps.max()),
        steps_loss_ratio_gt_1_2=int((ratio > 1.2).sum()),
        max_loss_ratio=float(np.nanmax(ratio)) if not np.isnan(ratio).all() else np.nan,
    )


def _correlations(found: Correlations) -> dict[str, Any]:
    """Table 3 and what is left of it; each profile is thinned to what a picture tells apart."""
    profiles = []
    for profile in found.profiles:
        if np.isnan(profile.r).all():
            continue
        best = profile.best
        profiles.append(
            {"signal": profile.signal, "lags": profile.lags.tolist(), "r": _rounded(profile.r.tolist())}
            | {"band": _rounded((1.96 / np.sqrt(np.maximum(profile.n_effective, 1.0))).tolist())}
            | {"best": None if best is None else asdict(profile.row(best))}
        )
    rows = [asdict(row) for row in found.rows]
    return {"rows": rows, "profiles": profiles, "infinite_ratios": found.infinite_ratios}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]
