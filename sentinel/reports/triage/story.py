"""Each incident as the page tells it: where it stands, what was done, the plan, and what the plan changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sentinel.plan.incident import PROOFS, Incident, Proof, Rollback, answer_of, overrides_to_json
from sentinel.plan.sentences import sentence, with_proofs
from sentinel.reports.triage.past import Asked, Past

__all__ = ["differences", "told"]

_TONES = {
    **dict.fromkeys(("opened", "failed", "not_proved", "rung_failed", "wait_over", "stopped", "expired"), "bad"),
    **dict.fromkeys(("proved", "closed", "approved"), "good"),
    **dict.fromkeys(("decided", "proposed", "shadow", "waiting", "rung_skipped"), "plan"),
}


def told(incident: Incident, past: Past, asked: Asked) -> dict[str, Any]:
    """One incident, whole."""
    events = [event for event in past.events if event.get("incident") == incident.id]
    return {
        "incident": incident.id,
        "status": incident.status,
        "outcome": incident.outcome,
        "note": incident.note,
        "attempt": incident.attempt,
        "onset_range": incident.onset_range,
        "alarm_step": incident.alarm_step,
        "opened_unix_s": incident.opened_unix_s,
        "closed_unix_s": incident.closed_unix_s,
        "reason": incident.reason,
        "led_by": incident.led_by,
        "story": list(_lines(events)),
        "plans": _plans(incident, events, asked.scripts),
        "commands": _commands(incident, asked),
    }


def _lines(events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in with_proofs(events):
        said = sentence(event)
        if said is not None:
            tone = _TONES.get(event["event"], "done")
            yield {"time_unix_s": float(event["time_unix_s"]), "sentence": said, "tone": tone, "event": event["event"]}


def _plans(incident: Incident, events: Sequence[Mapping[str, Any]], scripts: Mapping[str, str]) -> list[dict[str, Any]]:
    """What was decided; what is proposed; what would have been done, in mode observe."""
    rollbacks = {rollback.id: rollback for rollback in incident.rollbacks}
    plans = []
    for event in events:
        if event["event"] not in ("decided", "proposed", "shadow"):
            continue
        done = rollbacks.get(event.get("rollback") or "") if event["event"] == "decided" else None
        after = overrides_to_json(done.overrides) if done is not None else event.get("overrides")
        plans.append(
            {key: event.get(key) for key in ("rollback", "rung", "hypothesis", "target", "changes", "refusal")}
            | {"kind": event["event"], "lost_steps": event.get("lost_steps"), "outcome": _outcome(done, incident)}
            | {"checks": _checks(done, events), "actions": _actions(done, events)}
            | {"difference": differences(_ran_with(incident), after)}
            | {"script": _changed_lines(scripts.get(done.id, "") if done is not None else "")}
        )
    return plans


def _ran_with(incident: Incident) -> Mapping[str, Any]:
    """What the run ran with when it fell ill, in the shape of overrides.json."""
    return {"standing": incident.baseline.to_json(), "once": {"seed": incident.baseline.seed}}


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


def _changed_lines(diff: str) -> list[str]:
    """What a diff takes away and adds, and where; the lines around are the script's own, and may be nobody's affair."""
    body = diff.splitlines()[2:]  # the names of the two files
    return [line for line in body if line.startswith(("@@", "-", "+"))]


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _outcome(rollback: Rollback | None, incident: Incident) -> str | None:
    """Whether it helped, in a word or with why it did not."""
    if rollback is None:
        return None
    if rollback.result is not None:
        return rollback.result
    if rollback.taken_back:
        return "taken back"
    if rollback is incident.rollbacks[-1] and incident.outcome is not None:
        return incident.outcome
    if rollback.proof is Proof.NOT_VERIFIED:
        return f"holding; not verified: {', '.join(rollback.doubts)}"
    return "confirmed by the trainer, holding" if rollback.proved else "under way"


def _checks(rollback: Rollback | None, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the attempt reported against the plan."""
    if rollback is None:
        return []
    of = [e for e in events if e["event"] in PROOFS and e.get("rollback") == rollback.id]
    return [{**check, "answer": answer_of(check)} for check in of[-1].get("checks") or ()] if of else []


def _actions(rollback: Rollback | None, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was intended for it, in order, and whether it was seen done."""
    if rollback is None:
        return []
    of = [e for e in events if e.get("rollback") == rollback.id]
    done = {e["action"]["kind"] for e in of if e["event"] == "done"}
    kinds = dict.fromkeys(e["action"]["kind"] for e in of if e["event"] == "intent")
    return [{"kind": kind, "done": kind in done} for kind in kinds]


def _commands(incident: Incident, asked: Asked) -> list[dict[str, str]]:
    """What a person may type; the page itself never acts."""
    run = asked.typed
    found = [("The whole story", f"sentinel incident {incident.id} {run}")]
    if incident.proposal is not None and not incident.proposal.expired:
        found.append(("Say yes to what is proposed", f"sentinel approve {incident.id} {run}"))
    if incident.rollbacks and not incident.purged and incident.outcome != "undone":
        found.append(("Take the rollbacks back", f"sentinel undo {incident.id} {run}"))
    if incident.status in ("open", "stopped") and incident.onset_range is not None:
        found.append(("See a rollback's plan; nothing is touched", f"sentinel rollback --to TAG --dry-run {run}"))
    found.append(("What moved first", f"sentinel correlate --incident {incident.id} {run}"))
    return [{"what": what, "command": command} for what, command in found]
