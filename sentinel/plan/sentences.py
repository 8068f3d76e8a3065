"""The incident log's events as sentences: what happened, as a person tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sentinel.plan.incident import PROOFS, Event, Proof, failure, proof_of


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that happened."""

    time_unix_s: float
    sentence: str


def story(events: Iterable[Event], incident: str | None) -> tuple[Told, ...]:
    """What happened in an incident, in order; None is what belongs to none, such as restarts after crashes."""
    told = []
    for event in with_proofs(events):
        said = sentence(event) if event.get("incident") == incident else None
        if said is not None:
            told.append(Told(float(event["time_unix_s"]), said))
    return tuple(told)


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
    except (KeyError, TypeError):  # a log that an older version began: the rest of its story is still worth telling
        return f"{event['event']}, in the words of another version"


def _opened(event: Event) -> str:
    onset, led_by = event["onset_range"], event.get("led_by") or ()
    when = f", onset at step {onset[0]} to {onset[1]}, seen at {event['alarm_step']}" if onset else ""
    led = f"; led by {', '.join(led_by)}" if led_by else ""
    return f"opened{when}: {event['reason']}{led}"


def _shadow(event: Event) -> str:
    if event.get("refusal"):
        return f"would have done nothing: {event['refusal']}"
    return f"would have applied {_decision(event)}"


def _proof(event: Event) -> str:
    """What an attempt has shown of a rollback's changes."""
    proof, doubts = proof_of(event)
    attempt, rollback, named = event["attempt"], event["rollback"], ", ".join(doubts)
    if proof is Proof.CONFIRMED:
        return f"attempt {attempt} confirms {rollback}: {len(event['checks'])} checks hold"
    if proof is Proof.CONTRADICTED:
        return f"attempt {attempt} contradicts {rollback}, which did not take effect: {named}"
    return f"attempt {attempt} contradicts nothing of {rollback}; not verified: {named}"


def _rung_failed(event: Event) -> str:
    proof = event.get("proof")
    return f"{event['rollback']} {failure(event['reason'], Proof(proof) if proof else None, event.get('doubts') or ())}"


_TOLD: Mapping[str, Callable[[Event], str]] = {
    "opened": _opened,
    "baseline_completed": lambda _: "what the job script asks for is recorded: Slurm answers again",
    "proposed": lambda e: f"proposed {_decision(e)}, digest {e['digest'][:12]}: waits for `sentinel approve`",
    "approved": lambda e: f"approved by {e['by']}, digest {e['digest'][:12]}",
    "expired": lambda e: f"the proposal expired unanswered, digest {e['digest'][:12]}: nothing is done",
    "waiting": lambda e: f"{e['rung']!r} watches until step {e['until_step']}; hypothesis: {e['hypothesis']}",
    "wait_over": lambda e: f"{e['rung']!r} did not help: {e['reason']}",
    "rung_skipped": lambda e: f"rung {e['rung']!r} is skipped: {e['reason']}",
    "shadow": _shadow,
    "decided": lambda e: f"decided {e['rollback']}: {_decision(e)}; hypothesis: {e['hypothesis']}",
    "intent": lambda e: _doing(e["action"]),
    "failed": lambda e: f"failed: {_doing(e['action'])}: {e['reason']}",
    "applied": lambda e: f"{e['rollback']} is carried out",
    **dict.fromkeys(PROOFS, _proof),
    "rung_failed": _rung_failed,
    "stopped": lambda e: f"stopped, a person is needed: {e['reason']}",
    "troubled": lambda e: f"{e['topic']}: {e['reason']}",
    "relieved": lambda e: f"{e['topic']} no more: {e['reason']}",
    "purged": lambda _: "a person had the quarantine deleted: this can't be undone any more",
    "closed": lambda e: f"closed, {e['outcome']}: {e['reason']}",
}


def _decision(event: Event) -> str:
    changes = "; ".join(event.get("changes") or ()) or "nothing is changed but the checkpoint"
    return f"{event['rung']!r} from {event['target']['tag'] or 'scratch'} ({changes})"


def _doing(action: Event) -> str:
    match action["kind"]:
        case "verify_checkpoint":
            return f"read {action['tag']} whole"
        case "restore_pinned":
            return f"brought {action['tag']} back from its pin"
        case "prepare_job":
            return "prepared the restart"
        case "stop_job":
            hung = ", which hung; its stacks were kept first" if action.get("keep_stacks") else ""
            return f"stopped {', '.join(action['jobs'])}{hung}"
        case "quarantine_checkpoints":
            tags = action["tags"]
            span = tags[0] if len(tags) == 1 else f"{tags[0]} … {tags[-1]}"
            return f"moved {span} into the quarantine ({len(tags)})"
        case "point_latest":
            return f"pointed `latest` at {action['tag']}" if action["tag"] else "took `latest` away"
        case "cut_tensorboard":
            return f"cut TensorBoard at step {action['at']['global_step']}"
        case "write_overrides":
            return "wrote overrides.json"
        case "start_job":
            return "started the job"
        case "undo":
            return "took the rollback back"
    return str(action["kind"])
