"""The incident log's events as sentences: what happened, as a person tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sentinel.judge.analysis.departures import FirstMoved
from sentinel.plan.incident import removed_records
from sentinel.plan.incident.incident import PROOFS, Event, Proof, failure, proof_of
from sentinel.plan.restart.actions import span
from sentinel.vocabulary.errors import LineError


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that happened."""

    time_unix_s: float
    sentence: str
    event: str  # its kind, as in the incident log


def story(events: Iterable[Event], incident: str | None) -> tuple[Told, ...]:
    """What happened in an incident, in order; None is what belongs to none, such as restarts after crashes."""
    own = (event for event in with_proofs(events) if event.get("incident") == incident)
    return tuple(Told(float(e["time_unix_s"]), said, e["event"]) for e in own if (said := sentence(e)) is not None)


def with_proofs(events: Iterable[Event]) -> Iterator[Event]:
    """The events; a failed restart's with what was proved of its changes, which older logs do not repeat there."""
    proofs: dict[str, tuple[Proof, tuple[str, ...]]] = {}
    for event in events:
        if event["event"] in PROOFS:
            proofs[event["rollback"]] = proof_of(event)
        elif event["event"] == "rung_failed" and "proof" not in event and event.get("rollback") in proofs:
            proof, doubts = proofs[event["rollback"]]
            yield {**event, "proof": str(proof), "doubts": doubts}
            continue
        yield event


def sentence(event: Event) -> str | None:
    """One event as a sentence; None for the end of an action whose beginning was told, when it went well."""
    told = _TOLD.get(event["event"])
    try:
        return told(event) if told else None
    except (KeyError, TypeError, LineError):  # of an older version: the rest of the story is still worth telling
        return f"{event['event']}, in the words of another version"


def _opened(event: Event) -> str:
    onset, led_by, found = event["onset_range"], event.get("led_by") or (), event.get("moved_first")
    when = f", onset at step {onset[0]} to {onset[1]}, seen at {event['alarm_step']}" if onset else ""
    led = f"; led by {', '.join(led_by)}" if led_by else ""  # as older logs have it
    led = led if found is None else f"; {FirstMoved.from_json(found).sentence}"
    return f"opened{when}: {event['reason']}{led}"


def _shadow(event: Event) -> str:
    if event.get("refusal"):
        return f"would have done nothing: {event['refusal']}"
    return f"would have applied {_decision(event)}"


def _proof(event: Event) -> str:
    proof, doubts = proof_of(event)
    attempt, rollback, named = event["attempt"], event["rollback"], ", ".join(doubts)
    if proof is Proof.CONFIRMED:
        return f"attempt {attempt} confirms {rollback}: {len(event['checks'])} checks hold"
    if proof is Proof.CONTRADICTED:
        return f"attempt {attempt} contradicts {rollback}, which did not take effect: {named}"
    return f"attempt {attempt} contradicts nothing of {rollback}; not verified: {named}"


def _rung_failed(event: Event) -> str:
    proof = Proof(event["proof"]) if event.get("proof") else None
    return f"{event['rollback']} {failure(event['reason'], proof, event.get('doubts') or ())}"


_STARTS = {"continued": "continues the run", "not continued": "does not continue the run", "unknown": "starts"}
_TOLD: Mapping[str, Callable[[Event], str]] = {
    "opened": _opened,
    "baseline_completed": lambda _: "what the job script asks for is recorded: Slurm answers again",
    "proposed": lambda e: f"proposed {_decision(e)}, digest {e['digest'][:12]}: waits for `sentinel approve`",
    "approved": lambda e: f"approved by {e['by']}, digest {e['digest'][:12]}",
    "expired": lambda e: f"the proposal expired unanswered, digest {e['digest'][:12]}: nothing is done",
    "waiting": lambda e: f"{e['rung']!r} watches until step {e['until_step']}; hypothesis: {e['hypothesis']}",
    "wait_over": lambda e: f"{e['rung']!r} did not help: {e['reason']}",
    **removed_records.TOLD,
    "bisect_begun": lambda e: f"rung {e['rung']!r} asks for the cause: the run is bisected from before the onset",
    "bisect_ended": lambda e: f"the bisect has ended: {e['reason']}",
    "rung_skipped": lambda e: f"rung {e['rung']!r} is skipped: {e['reason']}",
    "shadow": _shadow,
    "decided": lambda e: f"decided {e['rollback']}: {_decision(e)}; hypothesis: {e['hypothesis']}",
    "intent": lambda e: _doing(e["action"]),
    "failed": lambda e: f"failed: {_doing(e['action'])}: {e['reason']}",
    "applied": lambda e: f"{e['rollback']} is carried out",
    **dict.fromkeys(PROOFS, _proof),
    "rung_failed": _rung_failed,
    "stopped": lambda e: f"stopped, a person is needed: {e['reason']}",
    "start_audited": lambda e: f"attempt {e['attempt']} {_STARTS.get(e['verdict'], e['verdict'])}: {e['reason']}",
    "alert_firing": lambda e: f"{e['topic']}: {e['reason']}",
    "alert_resolved": lambda e: f"{e['topic']} is over: {e['reason']}",
    "purged": lambda _: "a person had the quarantine deleted: this can't be undone any more",
    "closed": lambda e: f"closed, {e['outcome']}: {e['reason']}",
}


def _decision(event: Event) -> str:
    changes = "; ".join(event.get("changes") or ()) or "nothing is changed but the checkpoint"
    probe = removed_records.probe_of(event)
    goes_on = f", which goes on from {probe}" if probe else ""
    return f"{event['rung']!r} from {event['target']['tag'] or 'scratch'} ({changes}){goes_on}"


def _stopped(action: Event) -> str:
    hung = ", which hung; its stacks were kept first" if action.get("keep_stacks") else ""
    return f"stopped {', '.join(action['jobs'])}{hung}"


_DONE: Mapping[str, Callable[[Event], str]] = {
    "verify_checkpoint": lambda a: f"read {a['tag']} whole",
    "restore_pinned": lambda a: f"brought {a['tag']} back from its pin",
    "prepare_job": lambda _: "prepared the restart",
    "stop_job": _stopped,
    "quarantine_checkpoints": lambda a: f"moved {span(a['tags'])} into the quarantine ({len(a['tags'])})",
    "point_latest": lambda a: f"pointed `latest` at {a['tag']}" if a["tag"] else "took `latest` away",
    "cut_tensorboard": lambda a: f"cut TensorBoard at step {a['at']['global_step']}",
    "branch_wandb": lambda a: f"began a branch in W&B at step {a['global_step']}",
    "write_overrides": lambda _: "wrote overrides.json",
    "start_job": lambda _: "started the job",
    **removed_records.DONE,
    "ask_for_save": lambda a: f"asked the trainer for a save: {a['reason']}",
    "undo": lambda _: "took the rollback back",
}


def _doing(action: Event) -> str:
    done = _DONE.get(action["kind"])
    return done(action) if done else str(action["kind"])
