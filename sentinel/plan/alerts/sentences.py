"""The incident log's events as sentences: what happened, as a person tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.plan.incident import log_events, log_outcomes
from sentinel.plan.incident.incident import Proof, failure
from sentinel.plan.incident.log_events import IncidentEvent, Opened, PlannedRollback, Shadow, UnreadEvent
from sentinel.plan.incident.log_outcomes import ChecksShown, RecordedAction, RungFailed
from sentinel.plan.restart.actions import span


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that happened."""

    time_unix_s: float
    sentence: str
    event: str  # its kind, as in the incident log


def story(events: Iterable[IncidentEvent], incident: str | None) -> tuple[Told, ...]:
    """What happened in an incident, in order; None is what belongs to none, such as restarts after crashes."""
    own = (event for event in with_proofs(events) if event.incident == incident)
    return tuple(Told(e.time_unix_s, said, e.name) for e in own if (said := sentence(e)) is not None)


def with_proofs(events: Iterable[IncidentEvent]) -> Iterator[IncidentEvent]:
    """The events; a failed restart's with what was proved of its changes, which older logs do not repeat there."""
    proofs: dict[str, tuple[Proof, tuple[str, ...]]] = {}
    for event in events:
        if isinstance(event, ChecksShown):
            proofs[event.rollback] = event.proof
        elif isinstance(event, RungFailed) and not event.has("proof") and event.rollback in proofs:
            proof, doubts = proofs[event.rollback]
            yield replace(event, proof=proof, doubts=doubts)
            continue
        yield event


def sentence(event: IncidentEvent) -> str | None:
    """One event as a sentence; None for the end of an action whose beginning was told, when it went well."""
    told, other = _TOLD.get(type(event)), f"{event.name}, in the words of another version"
    if isinstance(event, UnreadEvent):  # the rest of the story is still worth telling
        return other if event.why is not None else None
    try:
        return told(event) if told else None
    except (KeyError, TypeError):
        return other


def _opened(event: Opened) -> str:
    onset, found = event.onset_range, event.moved_first
    when = f", onset at step {onset[0]} to {onset[1]}, seen at {event.alarm_step}" if onset else ""
    led = "" if found is None else f"; {found.sentence}"
    tried = ", ".join(map(repr, event.tried_before))
    again = f"; what was restarted by {tried} did not hold: the ladder goes on" if tried else ""
    return f"opened{when}: {event.reason}{led}{again}"


def _shadow(event: Shadow) -> str:
    return f"would have done nothing: {event.refusal}" if event.refusal else f"would have applied {_decision(event)}"


def _proof(event: ChecksShown) -> str:
    proof, doubts = event.proof
    attempt, rollback, named = event.attempt, event.rollback, ", ".join(doubts)
    if proof is Proof.CONFIRMED:
        return f"attempt {attempt} confirms {rollback}: {len(event.checks)} checks hold"
    if proof is Proof.CONTRADICTED:
        return f"attempt {attempt} contradicts {rollback}, which did not take effect: {named}"
    return f"attempt {attempt} contradicts nothing of {rollback}; not verified: {named}"


_STARTS = {"continued": "continues the run", "not continued": "does not continue the run", "unknown": "starts"}
_TOLD: Mapping[type[IncidentEvent], Callable[[Any], str]] = {
    log_events.Opened: _opened,
    log_events.BaselineCompleted: lambda _: "what the job script asks for is recorded: Slurm answers again",
    log_events.Proposed: lambda e: f"proposed {_decision(e)}, digest {e.digest[:12]}: waits for `sentinel approve`",
    log_events.Approved: lambda e: f"approved by {e.by}, digest {e.digest[:12]}",
    log_events.Expired: lambda e: f"the proposal expired unanswered, digest {e.digest[:12]}: nothing is done",
    log_events.Waiting: lambda e: f"{e.rung!r} watches until step {e.until_step}; hypothesis: {e.hypothesis}",
    log_events.WaitOver: lambda e: f"{e.rung!r} did not help: {e.reason}",
    log_outcomes.RaceBegun: lambda e: f"{', '.join(repr(r['rung']) for r in e.entrants)} race to step {e.until_step}",
    log_outcomes.RaceEnded: lambda e: f"the race has ended: {e.reason}",
    log_outcomes.BisectBegun: lambda e: (
        f"rung {e.rung!r} asks for the cause: the run is bisected from before the onset"
    ),
    log_outcomes.BisectEnded: lambda e: f"the bisect has ended: {e.reason}",
    log_events.RungSkipped: lambda e: f"rung {e.rung!r} is skipped: {e.reason}",
    log_events.Shadow: _shadow,
    log_events.ShadowRefused: lambda e: f"would have done nothing: {e.refusal}",
    log_events.Decided: lambda e: f"decided {e.rollback}: {_decision(e)}; hypothesis: {e.hypothesis}",
    log_outcomes.Intent: lambda e: _doing(e.action),
    log_outcomes.UndoIntent: lambda e: _doing(e.action),
    log_outcomes.Failed: lambda e: f"failed: {_doing(e.action)}: {e.reason}",
    log_outcomes.InPlaceGivenUp: lambda e: f"{e.rollback} goes on by a new job, not in place: {e.reason}",
    log_outcomes.Applied: lambda e: f"{e.rollback} is carried out",
    **dict.fromkeys((log_outcomes.Proved, log_outcomes.NotVerified, log_outcomes.NotProved), _proof),
    log_outcomes.RungFailed: lambda e: f"{e.rollback} {failure(e.reason, e.proof, e.doubts)}",
    log_outcomes.IncidentStopped: lambda e: f"stopped, a person is needed: {e.reason}",
    log_outcomes.StartAudited: lambda e: f"attempt {e.attempt} {_STARTS.get(e.verdict, e.verdict)}: {e.reason}",
    log_outcomes.AlertFiring: lambda e: f"{e.topic}: {e.reason}",
    log_outcomes.AlertResolved: lambda e: f"{e.topic} is over: {e.reason}",
    log_outcomes.Purged: lambda _: "a person had the quarantine deleted: this can't be undone any more",
    log_outcomes.Closed: lambda e: f"closed, {e.outcome}: {e.reason}",
}


def _decision(event: PlannedRollback) -> str:
    changes = "; ".join(event.changes) or "nothing is changed but the checkpoint"
    adopts = event.adopts if isinstance(event, log_events.Decided) else None
    goes_on = f", which goes on from {adopts.probe}" if adopts is not None else ""
    where = ", in the same processes" if event.in_place else ""
    return f"{event.rung!r} from {event.target.tag or 'scratch'} ({changes}){goes_on}{where}"


def _stopped(action: Mapping[str, Any]) -> str:
    hung = ", which hung; its stacks were kept first" if action.get("keep_stacks") else ""
    return f"stopped {', '.join(action['jobs'])}{hung}"


def _pointed(action: Mapping[str, Any]) -> str:
    if action.get("by_newest"):
        return f"left {action['tag'] or 'no checkpoint'} as the newest, which the trainer resumes from"
    return f"pointed `latest` at {action['tag']}" if action["tag"] else "took `latest` away"


# what an action has done, of the fields that it was recorded with
_DONE: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "verify_checkpoint": lambda a: f"read {a['tag']} whole",
    "restore_pinned": lambda a: f"brought {a['tag']} back from its pin",
    "prepare_job": lambda _: "prepared the restart",
    "stop_job": _stopped,
    "park": lambda a: f"parked attempt {a['attempt']}",
    "resume": lambda a: f"resumed attempt {a['attempt']} in its own processes from {a['target'] or 'scratch'}",
    "release": lambda a: f"released attempt {a['attempt']}, which trains on",
    "quarantine_checkpoints": lambda a: f"moved {span(a['tags'])} into the quarantine ({len(a['tags'])})",
    "point_latest": _pointed,
    "cut_tensorboard": lambda a: f"cut TensorBoard at step {a['at']['global_step']}",
    "branch_wandb": lambda a: f"began a branch in W&B at step {a['global_step']}",
    "write_overrides": lambda _: "wrote overrides.json",
    "start_job": lambda _: "started the job",
    "start_probe": lambda a: f"started the probe {a['probe']}",  # this and the next two: of older releases
    "stop_probe": lambda a: f"stopped the probe {a['probe']}",
    "adopt_probe": lambda a: f"made the checkpoints of {a['probe']} up to {a['tag']} the run's",
    "ask_for_save": lambda a: f"asked the trainer for a save: {a['reason']}",
    "undo": lambda _: "took the rollback back",
}


def _doing(action: RecordedAction) -> str:
    done = _DONE.get(action.kind)
    return done(action.details) if done else action.kind
