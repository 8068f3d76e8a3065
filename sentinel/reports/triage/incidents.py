"""One incident as the page shows it: its story, its plans and what they change, commands, and where to look first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sentinel.judge.readings import Readings
from sentinel.plan.alerts.sentences import story
from sentinel.plan.incident.incident import Incident, Proof, Rollback, overrides_to_json
from sentinel.plan.incident.log_events import Decided, IncidentEvent, PlannedRollback, ShadowRefused
from sentinel.plan.incident.log_outcomes import ActionEvent, ChecksShown, Done, Intent
from sentinel.reports.past import PageSettings, Past, joined
from sentinel.reports.triage.curves import layer_points
from sentinel.vocabulary.codec import kept

_TONES = {
    **dict.fromkeys(("opened", "failed", "not_proved", "rung_failed", "wait_over", "stopped", "expired"), "bad"),
    **dict.fromkeys(("proved", "closed", "approved"), "good"),
    **dict.fromkeys(("decided", "proposed", "shadow", "waiting", "rung_skipped"), "plan"),
}
_BEFORE_STEPS, _AFTER_STEPS = 3, 1  # the batches that are suspected: from so long before the onset to so long after it
_CALM_STEPS = 100  # how far back before the onset lies what is usual for a layer or a spread of ranks
_TEXTS, _TEXT_CHARACTERS = 256, 600  # texts of the suspected samples that are shown: how many, and how much of each
_LAYERS = 8
_SPREADS = ("loss_spread", "grad_norm_spread")
_FIELDS = ("status", "outcome", "note", "attempt", "onset_range", "alarm_step", "opened_unix_s", "closed_unix_s")


def incident_document(incident: Incident, past: Past, settings: PageSettings) -> dict[str, Any]:
    events = [event for event in past.events if event.incident == incident.id]
    return {
        "incident": incident.id,
        **{name: getattr(incident, name) for name in (*_FIELDS, "reason")},
        "led_by": incident.leading.led_by,
        "led": incident.leading.sentence,
        "story": [asdict(one) | {"tone": _TONES.get(one.event, "done")} for one in story(events, incident.id)],
        "plans": [
            _plan(e, incident, events, settings.scripts)
            for e in events
            if isinstance(e, PlannedRollback | ShadowRefused)
        ],
        "commands": _commands(incident, settings.run_option),
        "suspects": suspects(incident, past, settings.texts),
        "bisect": settings.bisects.get(incident.id),
    }


def _plan(
    event: PlannedRollback | ShadowRefused,
    incident: Incident,
    events: Sequence[IncidentEvent],
    scripts: Mapping[str, str],
) -> dict[str, Any]:
    rollbacks = {rollback.id: rollback for rollback in incident.rollbacks}
    done = rollbacks.get(event.rollback) if isinstance(event, Decided) else None
    ran_with = {"standing": incident.baseline.to_json(), "once": {"seed": incident.baseline.seed}}
    line = event.to_json()
    overrides = line.get("overrides") if done is None else overrides_to_json(done.overrides)
    diff = scripts.get(done.id, "") if done is not None else ""
    keys = ("rollback", "rung", "hypothesis", "target", "changes", "refusal", "lost_steps")
    return {key: line.get(key) for key in keys} | {
        "kind": event.kind,
        "outcome": None if done is None else _outcome(done, incident),
        "checks": [] if done is None else _checks(done, events),
        "actions": [] if done is None else _actions(done, events),
        "difference": differences(ran_with, overrides),
        # without the names of the two files and the lines around, which are the script's own and may be confidential
        "script": [line for line in diff.splitlines()[2:] if line.startswith(("@@", "-", "+"))],
    }


def differences(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The settings of overrides.json that are not what they were: their dotted names, old and new."""
    if after is None:
        return []
    old, new = dict(_flat(before)), dict(_flat(after))
    names = [name for name in new if name.startswith(("standing.", "once.")) and name != "once.id"]
    return [
        {"name": name.partition(".")[2], "before": old.get(name), "after": new[name]}
        for name in names
        if new[name] is not None and old.get(name) != new[name] and (name in old or new[name] not in (0, False))
    ]


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _outcome(rollback: Rollback, incident: Incident) -> str:
    if rollback.result is not None:
        return rollback.result
    if rollback.taken_back:
        return "taken back"
    if rollback is incident.rollbacks[-1] and incident.outcome is not None:
        return incident.outcome
    if rollback.proof is Proof.NOT_VERIFIED:
        return f"waits for the recovery; not verified: {', '.join(rollback.doubts)}"
    return "confirmed by the trainer; waits for the recovery" if rollback.proved else "under way"


def _checks(rollback: Rollback, events: Sequence[IncidentEvent]) -> list[dict[str, Any]]:
    """What the attempt reported against the plan."""
    of = [e for e in events if isinstance(e, ChecksShown) and e.rollback == rollback.id]
    return [kept(check) for check in of[-1].checks] if of else []


def _actions(rollback: Rollback, events: Sequence[IncidentEvent]) -> list[dict[str, Any]]:
    """The actions that were intended for it, in order, and whether each was seen done."""
    of = [e for e in events if isinstance(e, ActionEvent) and e.rollback == rollback.id]
    done = {e.action.kind for e in of if isinstance(e, Done)}
    kinds = dict.fromkeys(e.action.kind for e in of if isinstance(e, Intent))
    return [{"kind": kind, "done": kind in done} for kind in kinds]


def _commands(incident: Incident, run: str) -> list[dict[str, str]]:
    """What a person may type; the page itself never acts."""
    found = [("All events", f"sentinel incident {incident.id} {run}")]
    if incident.proposal is not None and not incident.proposal.expired:
        found.append(("Say yes to what is proposed", f"sentinel approve {incident.id} {run}"))
    if incident.rollbacks and not incident.purged and incident.outcome != "undone":
        found.append(("Take the rollbacks back", f"sentinel undo {incident.id} {run}"))
    if incident.status in ("open", "stopped") and incident.onset_range is not None:
        found.append(("See a rollback's plan; nothing is touched", f"sentinel rollback --to TAG --dry-run {run}"))
    if incident.onset_range is not None:
        found.append(("Why it diverged, by short trainings beside it", f"sentinel bisect {incident.id} {run}"))
    found.append(("What moved first", f"sentinel correlate --incident {incident.id} {run}"))
    return [{"what": what, "command": command} for what, command in found]


def suspects(incident: Incident, past: Past, texts: Mapping[int, str] | None) -> dict[str, Any] | None:
    """Samples, signals, layers and ranks around the onset, as far as measured; None without an onset."""
    if incident.onset_range is None:
        return None
    early, late = incident.onset_range
    line = past.descent_of(incident.attempt)
    return {
        "samples": _samples(line, early, late, texts),
        "signals": incident.leading.to_json(),
        "layers": _layers(past, incident.attempt, early, late),
        "ranks": _ranks(line, early, late),
    }


def _samples(line: Sequence[Readings], early: int, late: int, texts: Mapping[int, str] | None) -> dict[str, Any] | None:
    """[first, after_last): positions in the data order that those steps consumed; None where they were not counted."""
    batches: list[tuple[int, int, int]] = []
    for readings in line:
        ends, sizes = readings.values("consumed_samples"), readings.values("global_batch_samples")
        near = (readings.steps >= early - _BEFORE_STEPS) & (readings.steps <= late + _AFTER_STEPS)
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


def _layers(past: Past, attempt: int, early: int, late: int) -> list[dict[str, Any]]:
    """Each layer's largest √v around the onset over its median before; the most grown first."""
    measured = past.history.attempts[attempt].layers if attempt in past.history.attempts else []
    calm = layer_points(one for one in measured if early - _CALM_STEPS <= one.global_step < early)
    after = layer_points(one for one in measured if early <= one.global_step <= late + _CALM_STEPS)
    rows: list[dict[str, Any]] = []
    for layer, points in after.items():
        then = np.array([value for _, value in points])
        usual = float(np.median([value for _, value in calm[layer]])) if layer in calm else np.nan
        most = float(np.nanmax(then)) if np.isfinite(then).all() else np.inf
        rows.append({"layer": layer} | _growth(usual, most))
    rows.sort(key=lambda row: 0.0 if math.isnan(row["growth"]) else -row["growth"])
    return rows[:_LAYERS]


def _ranks(line: Sequence[Readings], early: int, late: int) -> list[dict[str, Any]]:
    """The spread over the ranks around the onset, and the usual one: one bad rank or shard, or all alike."""
    rows = []
    for name in _SPREADS if line else ():
        steps, values = np.concatenate([r.steps for r in line]), joined(line, name)
        calm = values[(steps >= early - _CALM_STEPS) & (steps < early - _BEFORE_STEPS) & np.isfinite(values)]
        then = values[(steps >= early - _BEFORE_STEPS) & (steps <= late + _AFTER_STEPS) & ~np.isnan(values)]
        if len(calm) and len(then):
            rows.append({"signal": name} | _growth(float(np.median(calm)), float(then.max())))
    return rows


def _growth(usual: float, most: float) -> dict[str, float]:
    return {"usual": usual, "most": most, "growth": most / usual if usual > 0 else np.nan}
