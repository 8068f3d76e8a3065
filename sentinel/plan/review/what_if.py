"""What would have changed a decision: the turn is decided again with one fact, or one key of the policy, changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Approval
from sentinel.plan.observation import Life
from sentinel.plan.outcome import Memory, Turn
from sentinel.plan.restart.actions import describe
from sentinel.plan.restart.liveness import life_of
from sentinel.plan.turn import decide
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import outside

_HOUR_S, _TIMES = 3600.0, 10
_NEWEST = 3  # whole checkpoints that are taken away, one at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One thing that would have been otherwise, and what would then have been decided."""

    what: str
    comes_to: str  # in the words of `comes_to`


def comes_to(turn: Turn) -> str:
    """What is done and recorded, and why, as one line."""
    recorded = [e.kind.replace("_", " ") for e in turn.records]
    rungs = [f" (rung {rung!r})" if (rung := getattr(e, "rung", None)) is not None else "" for e in turn.records]
    done = [describe(action) for action in turn.actions]
    parts = [f"records: {', '.join(map(str.__add__, recorded, rungs))}"] if recorded else []
    parts += [f"does: {', '.join(done)}"] if done else []
    parts += [f"carries on the undo of {i.id}" for i in turn.undo]
    parts += ["ends the watch" if turn.outcome == 0 else "asks for a person"] if turn.outcome is not None else []
    return f"{'; '.join(parts) or 'nothing is done'}: {turn.reason}"


def what_would_change(facts: Facts, policy: Policy, memory: Memory) -> tuple[WhatIf, ...]:
    """Each single change that leads to another turn, in the order: of the run, of a person's word, of the policy."""
    others: list[tuple[str, Facts, Policy, Memory]] = [
        *((what, other, policy, memory) for what, other in _of_the_run(facts)),
        *((what, other, policy, remembered) for what, other, remembered in _of_a_person(facts, memory)),
        *((what, facts, rules, memory) for what, rules in _of_the_policy(policy)),
    ]
    before, found = _essence(decide(facts, policy, memory)), list[WhatIf]()
    for what, other, rules, remembered in others:
        turn = decide(other, rules, remembered)
        if _essence(turn) != before:
            found.append(WhatIf(what=what, comes_to=comes_to(turn)))
    return tuple(found)


def _essence(turn: Turn) -> tuple[object, ...]:
    """What is done, not in which words."""
    records = [(e.kind, *(getattr(e, name, None) for name in ("rung", "target", "refusal"))) for e in turn.records]
    undo = [i.id for i in turn.undo]
    return str(records), turn.actions, undo, turn.outcome, turn.pins, turn.message is None


def _of_the_run(facts: Facts) -> Iterator[tuple[str, Facts]]:
    if facts.verdict.kind is not VerdictKind.HEALTHY:
        healthy = replace(facts.verdict, kind=VerdictKind.HEALTHY, onset_range=None, alarm_step=None)
        yield "a verdict of healthy", replace(facts, verdict=healthy)
    if life_of(facts.liveness).life is not Life.GONE:
        jobs = replace(facts.jobs, known=True, why_unknown="", writers=())
        seen = {"jobs": jobs, "heartbeats": (), "files_seen": (), "attempts": _ended(facts)}
        yield "nothing of the job alive, for certain", facts.changed(**seen)
    whole = [c for c in facts.folders.checkpoints if c.complete and not c.only_pinned]
    for c in reversed(whole[-_NEWEST:]):
        half = replace(c, complete=False, problem="not whole")
        there = tuple(half if x.tag == c.tag else x for x in facts.folders.checkpoints)
        yield f"{c.tag} not whole", facts.changed(checkpoints=there)
    if any(c.verified is None for c in whole):
        there = tuple(replace(c, verified=True) if c.complete else c for c in facts.folders.checkpoints)
        yield "every whole checkpoint read and found sound", facts.changed(checkpoints=there)
    if facts.readings.unhealthy_spans or facts.readings.spoilt_spans:
        yield "no unhealthy span and no bad start on record", facts.changed(unhealthy_spans=(), spoilt_spans=())
    for name, sentence in (("room_problem", "room for the coming saves"), ("disagreement", "trackers that agree")):
        if getattr(facts.folders, name) is not None:
            yield sentence, facts.changed(**{name: None})
    if facts.on_demand.start is not None:
        yield "no verdict on the newest start", facts.changed(start=None)
    later = [replace(file_seen, age_s=file_seen.age_s + _HOUR_S) for file_seen in facts.liveness.files_seen]
    beats = [replace(beat, age_s=beat.age_s + _HOUR_S) for beat in facts.liveness.heartbeats]
    minute = None if facts.minute_of_day is None else (facts.minute_of_day + 60) % 1440
    passed = {"now_unix_s": facts.now_unix_s + _HOUR_S, "minute_of_day": minute, "files_seen": tuple(later)}
    after = facts.changed(**passed, heartbeats=tuple(beats), silent_s=facts.own.silent_s + _HOUR_S)
    yield "an hour more, and nothing new in it", after


def _ended(facts: Facts) -> tuple[object, ...]:
    return tuple(replace(attempt, finished=True, grew_after_end=False) for attempt in facts.liveness.attempts)


def _of_a_person(facts: Facts, memory: Memory) -> Iterator[tuple[str, Facts, Memory]]:
    if facts.person.paused:
        yield "no `sentinel pause`", facts.changed(paused=False), memory
    if facts.person.kill_file:
        yield "no KILL file", facts.changed(kill_file=False), memory
    incident = facts.open_incident
    proposal = incident.proposal if incident is not None else None
    if incident is not None and proposal is not None and incident.id not in facts.person.approvals:
        said = Approval(digest=proposal.digest, by="a person", time_unix_s=facts.now_unix_s)
        approved = facts.changed(approvals={**facts.person.approvals, incident.id: said})
        remembered = replace(memory, verified_for=memory.verified_for | {proposal.digest})
        yield f"`sentinel approve {incident.id}`", approved, remembered


def _of_the_policy(policy: Policy) -> Iterator[tuple[str, Policy]]:
    hints = get_type_hints(Policy)
    for field in dataclasses.fields(Policy):
        if field.name == "ladder":
            continue
        value = getattr(policy, field.name)
        for other in _others(hints[field.name], value):
            one: dict[str, Any] = {field.name: other}
            try:
                changed = replace(policy, **one)
            except ConfigError:
                continue
            if outside(changed) is not None:
                continue
            yield f"[policy] {field.name} = {_toml(other)}, not {_toml(value)}", changed
    for rung in policy.ladder:
        rest = tuple(other for other in policy.ladder if other is not rung)
        yield f"a ladder without {rung.name!r}", replace(policy, ladder=rest)


def _others(hint: object, value: object) -> Iterator[object]:
    """Other values of a key: each other word, the other truth, ten times and a tenth; no quiet hours, no limit."""
    if get_origin(hint) is Literal:
        yield from (word for word in get_args(hint) if word != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from {value * _TIMES or _TIMES, value // _TIMES} - {value}
    elif isinstance(value, float):
        yield from (value * _TIMES or _HOUR_S, value / _TIMES)
    elif value and isinstance(value, tuple):
        yield ()


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def what_was_seen(facts: Facts) -> Iterator[tuple[str, str]]:
    """Topic and sentence: what the decision rested on."""
    verdict = facts.verdict
    at = "" if verdict.global_step is None else f" at step {verdict.global_step}"
    yield "verdict", f"{verdict.kind}{at}: {verdict.reason}"
    if verdict.onset_range is not None:
        yield "onset", f"step {verdict.onset_range[0]} to {verdict.onset_range[1]}"
    known = life_of(facts.liveness)
    yield "job", f"{known.life}: {known.sentence}"
    yield "checkpoints", _checkpoints(facts)
    if facts.latest is not None:
        yield (
            "attempt",
            f"{facts.latest.number}, {facts.latest.made} steps made"
            + (f", started for {facts.latest.rollback}" if facts.latest.rollback else ""),
        )
    if (incident := facts.open_incident) is not None:
        tried = ", ".join(f"{r.rung!r} ({r.result or r.proof or 'under way'})" for r in incident.rollbacks)
        yield "incident", f"{incident.id} is {incident.status}; tried: {tried or 'nothing yet'}"
        if incident.tried_before:
            yield "before it", f"restarted by {', '.join(map(repr, incident.tried_before))}, which did not hold"
    for name, found in (("start", facts.on_demand.start), ("recovery", facts.on_demand.recovery)):
        if found is not None:
            yield name, found.reason
    held = [word for word, on in (("paused", facts.person.paused), ("KILL is there", facts.person.kill_file)) if on]
    held += [f"{name} approved by {approval.by}" for name, approval in facts.person.approvals.items()]
    if held:
        yield "a person", ", ".join(held)
    if facts.own.failure is not None:
        yield "failure", facts.own.failure.reason


def _checkpoints(facts: Facts) -> str:
    whole = [c for c in facts.folders.checkpoints if c.complete and not c.only_pinned]
    healthy = [c for c in whole if facts.readings.unhealthy_at(c.global_step) is None]
    if facts.verdict.onset_range is not None:
        healthy = [c for c in healthy if c.global_step < facts.verdict.onset_range[0]]
    newest = f"; the newest whole and healthy one is {healthy[-1].tag}" if healthy else "; none is whole and healthy"
    return f"{len(facts.folders.checkpoints)}, {len(whole)} whole{newest}; `latest` says {facts.folders.latest_tag}"
