"""Where to look first: which samples, which layer, which rank, which signal, around an incident's onset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sentinel.judge.analysis.first_mover import first_moved_of_readings
from sentinel.judge.readings import Readings
from sentinel.plan.incident import Incident
from sentinel.reports.triage.past import Past

__all__ = ["AFTER_STEPS", "BEFORE_STEPS", "suspects"]

BEFORE_STEPS, AFTER_STEPS = 3, 1
"""The batches that are suspected: from three steps before the onset to one after it."""

_CALM_STEPS = 100
"""How far back before the onset lies what is ordinary for a layer or a spread of ranks."""

_TEXTS, _TEXT_CHARACTERS = 256, 600
"""How much of the suspects' text is shown: of so many samples, so much of each."""

_LAYERS = 8
_SPREADS = ("loss_spread", "grad_norm_spread")


def suspects(incident: Incident, past: Past, texts: Mapping[int, str] | None) -> dict[str, Any] | None:
    """All four, as far as they were measured; None where the incident has no onset."""
    if incident.onset_range is None:
        return None
    early, late = incident.onset_range
    line = past.descent_of(incident.attempt)
    return {
        "samples": _samples(line, early, late, texts),
        "signals": _signals(line, early),
        "layers": _layers(past, incident.attempt, early, late),
        "ranks": _ranks(line, early, late),
    }


def _samples(line: Sequence[Readings], early: int, late: int, texts: Mapping[int, str] | None) -> dict[str, Any] | None:
    """[first, after_last): positions in the data order that those steps consumed; None where they were not counted."""
    batches: list[tuple[int, int, int]] = []
    for readings in line:
        ends, sizes = readings.values("consumed_samples"), readings.values("global_batch_samples")
        near = (readings.steps >= early - BEFORE_STEPS) & (readings.steps <= late + AFTER_STEPS)
        at = np.flatnonzero(near & np.isfinite(ends) & np.isfinite(sizes)).tolist()
        batches += [(int(readings.steps[i]), int(ends[i] - sizes[i]), int(ends[i])) for i in at]
    if not batches:
        return None
    first, after_last = min(b[1] for b in batches), max(b[2] for b in batches)
    known = {p: text for p, text in (texts or {}).items() if first <= p < after_last}
    return {
        "first": first,
        "after_last": after_last,
        "steps": [batches[0][0], batches[-1][0]],
        "batches": [{"step": step, "first": begin, "after_last": end} for step, begin, end in batches],
        "texts": [{"position": p, "text": known[p][:_TEXT_CHARACTERS]} for p in sorted(known)[:_TEXTS]],
        "texts_known": len(known),
    }


def _signals(line: Sequence[Readings], onset: int) -> dict[str, Any] | None:
    """Which signal left its own noise first: see `first_moved`."""
    if not line or not any((r.steps == onset).any() for r in line):
        return None
    found = first_moved_of_readings(line, onset_step=onset)
    departures = [asdict(departure) for departure in found.departures]
    return {"departures": departures, "stayed": found.stayed, "unjudged": found.unjudged}


def _layers(past: Past, attempt: int, early: int, late: int) -> list[dict[str, Any]]:
    """Each layer's largest √v around the onset over its median before; the most grown first."""
    measured = past.history.attempts[attempt].layers if attempt in past.history.attempts else []
    calm = [one for one in measured if early - _CALM_STEPS <= one.global_step < early]
    after = [one for one in measured if early <= one.global_step <= late + _CALM_STEPS]
    rows: list[dict[str, Any]] = []
    for layer in dict.fromkeys(name for one in after for name in one.layers):
        ordinary = [one.adam_variance_max[one.layers.index(layer)] for one in calm if layer in one.layers]
        then = np.array([one.adam_variance_max[one.layers.index(layer)] for one in after if layer in one.layers])
        usual = float(np.median(ordinary)) if ordinary else np.nan
        most = float(np.nanmax(then)) if np.isfinite(then).all() else np.inf
        rows.append({"layer": layer, "usual": usual, "most": most, "growth": most / usual if usual > 0 else np.nan})
    rows.sort(key=lambda row: 0.0 if math.isnan(row["growth"]) else -row["growth"])
    return rows[:_LAYERS]


def _ranks(line: Sequence[Readings], early: int, late: int) -> list[dict[str, Any]]:
    """How far the ranks lay apart around the onset, and how far as a rule: one bad rank or shard, or all alike."""
    rows = []
    for name in _SPREADS:
        steps = np.concatenate([r.steps for r in line]) if line else np.zeros(0, np.int64)
        values = np.concatenate([r.values(name) for r in line]) if line else np.zeros(0)
        calm = values[(steps >= early - _CALM_STEPS) & (steps < early - BEFORE_STEPS) & np.isfinite(values)]
        then = values[(steps >= early - BEFORE_STEPS) & (steps <= late + AFTER_STEPS) & ~np.isnan(values)]
        if len(calm) and len(then):
            usual, most = float(np.median(calm)), float(then.max())
            rows.append({"signal": name, "usual": usual, "most": most, "growth": most / usual if usual > 0 else np.nan})
    return rows
