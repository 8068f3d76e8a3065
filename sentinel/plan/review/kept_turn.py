"""A turn as it is kept: the facts that it was decided from, the policy, and what it came to. Deciding again gives the
same turn, on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.outcome import Memory, Turn
from sentinel.plan.restart.actions import Action
from sentinel.plan.restart.actions import to_json as action_to_json
from sentinel.vocabulary.codec import Form, kept, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.texts import without_secrets

VERSION = 3  # of the document; 1 had none: its facts lay in one class; 2 had other names
_FORM = Form(error=ConfigError, name="the kept turn", ignores_unknown=True, checks_ranges=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurn:
    """Read back; nothing of it is live."""

    facts: Facts
    policy: Policy
    memory: Memory
    decided: Mapping[str, Any]  # the turn, as `told` gives it

    @classmethod
    def from_json(cls, data: Mapping[str, Any], log: tuple[IncidentEvent, ...] = ()) -> Self:
        """`log`: the incident log, where the turn does not bring its own. ConfigError names what is wrong."""
        if data.get("version") != VERSION:
            raise ConfigError(
                f"the kept turn is of version {data.get('version', 1)}, and this release reads version {VERSION}: "
                "explain it with the release that wrote it"
            )
        facts = dict(data.get("facts") or {})
        own, count = facts.pop("events", None), data.get("events_before")
        if not isinstance(own, list):
            if not isinstance(count, int) or len(log) < count:
                raise ConfigError(
                    f"the kept turn was decided when the incident log had {count} events, and it has {len(log)}"
                )
            shifts = dict(data.get("shifts") or ())
            events = tuple(event.shifted(shifts[n]) if n in shifts else event for n, event in enumerate(log[:count]))
        else:
            events = tuple(map(event_of, own))
        read_back = replace(read(Facts, {**facts, "events": []}, "facts", _FORM), incidents=fold(events), events=events)
        turn = data.get("turn")
        decided = turn if isinstance(turn, Mapping) else {}
        policy = read(Policy, data.get("policy"), "policy", _FORM)
        memory = read(Memory, data.get("memory"), "memory", _FORM)
        return cls(
            facts=read_back, policy=policy, memory=memory, decided=decided if isinstance(decided, Mapping) else {}
        )


def to_json(facts: Facts, policy: Policy, memory: Memory, turn: Turn, *, with_log: bool = False) -> dict[str, Any]:
    """The turn as it is kept, without secrets. The events of the incident log are counted, unless they are to come
    with it: the log only grows."""
    found = kept(replace(facts, events=(), incidents=()))
    found["events"] = [event.to_json() for event in facts.events] if with_log else None
    del found["incidents"]
    shifts = [[n, e.shifted_by_s] for n, e in enumerate(facts.events) if e.shifted_by_s is not None]
    of_log = {"events_before": len(facts.events), "shifts": shifts}
    decided = {"policy": kept(policy), "memory": kept(memory), "turn": told(turn)}
    made = {"version": VERSION, "facts": found, **of_log, **decided}
    # as a file would hold it: two decisions are compared by their texts
    return dict(without_secrets(load_object(dump_json(made))))


def told(turn: Turn) -> dict[str, Any]:
    """All of a turn as plain data; of an undo the incident's name."""
    plain = kept(replace(turn, undo=(), actions=(), records=(), alert_records=()))
    plain |= {name: [e.to_json() for e in getattr(turn, name)] for name in ("records", "alert_records")}
    actions = [_action(action) for action in turn.actions]
    return dict(load_object(dump_json({**plain, "undo": [i.id for i in turn.undo], "actions": actions})))


def _action(action: Action) -> dict[str, Any]:
    return {"kind": action_to_json(action)["kind"], **kept(action)}
