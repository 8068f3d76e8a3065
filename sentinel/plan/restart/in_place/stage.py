"""stage_of(decision, facts, policy) -> StageSeen: how far a rollback in place has come, from what is true now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.observation import Life
from sentinel.plan.restart.actions import Release
from sentinel.plan.restart.in_place.held import held_in_memory
from sentinel.plan.restart.in_place.parked import why_not_parked
from sentinel.plan.restart.in_place.way import too_short
from sentinel.plan.restart.liveness import life_of
from sentinel.vocabulary.parking import memory_tag

WAITS_PARKED_S = 1800.0
"""Seconds for which a trainer stays parked beyond `park_within_s`, while files are moved or a watch is started anew."""
_TAKEN_WITHIN_S = 60.0  # seconds within which a parked trainer takes RESUME: it looks for it several times a second


class Stage(StrEnum):
    """How far a rollback in place has come."""

    PARKS = "parks"  # its trainer is to be parked
    PARKED = "parked"  # it is: files may be moved, and it is resumed when they are
    RESUMED = "resumed"  # it was resumed, and has not reported its start yet
    LOST = "lost"  # it can't go on in place


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeen:
    stage: Stage
    why: str  # as a sentence


def stage_of(decision: Rollback, facts: Facts, policy: Policy) -> StageSeen:
    """Of a decision that is to be carried out in place and of which no attempt has reported its start yet."""
    known, attempt = life_of(facts.liveness, except_for=decision.id), decision.after_attempt
    if (dropped := _dropped(decision, facts)) is not None:
        return StageSeen(stage=Stage.LOST, why=dropped)
    if known.life is Life.PARKED:
        return _parked(decision, facts, known.sentence)
    if known.life is Life.GONE:
        return StageSeen(stage=Stage.LOST, why=f"the trainer of attempt {attempt} is gone: {known.sentence}")
    newest = facts.latest
    if decision.resumed:
        waited_s = facts.now_unix_s - (decision.last_start_unix_s or 0.0)
        if waited_s > policy.confirm_within_s:
            why = f"it was resumed {waited_s:.0f} s ago and has not reported its start"
            return StageSeen(stage=Stage.LOST, why=why)
        return StageSeen(stage=Stage.RESUMED, why=f"{decision.id} is resumed and has not reported its start yet")
    if newest is not None and newest.number != attempt:
        why = f"attempt {newest.number} runs, and attempt {attempt} was to be parked"
        return StageSeen(stage=Stage.LOST, why=why)
    return _parks(decision, facts, policy)


def _dropped(decision: Rollback, facts: Facts) -> str | None:
    """That the target was in memory, and newer states have taken its place."""
    if decision.on_disk is None or decision.resumed:
        return None
    held = held_in_memory(facts, decision.after_attempt)
    if not held or decision.target_step in held:  # none: it has ended, which its liveness tells
        return None
    return f"attempt {decision.after_attempt} does not keep {decision.target_tag} any more, but {_tags(held)}"


def _tags(steps: tuple[int, ...]) -> str:
    return ", ".join(map(memory_tag, steps))


def _parked(decision: Rollback, facts: Facts, sentence: str) -> StageSeen:
    parked, waited_s = facts.liveness.parked, facts.now_unix_s - (decision.last_start_unix_s or 0.0)
    if decision.resumed and parked is not None and parked.resume_asked:
        if waited_s > _TAKEN_WITHIN_S:
            return StageSeen(stage=Stage.LOST, why=f"{sentence}, and has not taken RESUME within {waited_s:.0f} s")
        return StageSeen(stage=Stage.RESUMED, why=f"attempt {parked.attempt} has not taken RESUME yet")
    return StageSeen(stage=Stage.PARKED, why=sentence)


def _parks(decision: Rollback, facts: Facts, policy: Policy) -> StageSeen:
    since, number = decision.park_asked_unix_s, decision.after_attempt
    doubt, newest = why_not_parked(facts.liveness, decision.id), facts.latest
    if since is not None and newest is not None and newest.not_parked_for == decision.id:
        return StageSeen(stage=Stage.LOST, why=f"attempt {number} could not be parked: {newest.why_not_parked}")
    if since is not None and facts.now_unix_s - since > policy.park_within_s:
        why = f"attempt {number} is not parked within {policy.park_within_s:.0f} s: {doubt}"
        return StageSeen(stage=Stage.LOST, why=why)
    if since is None and (short := too_short(facts, policy)) is not None:
        return StageSeen(stage=Stage.LOST, why=short)
    return StageSeen(stage=Stage.PARKS, why=f"attempt {number} is to be parked: {doubt}")


def deadline_unix_s(decision: Rollback, facts: Facts, policy: Policy) -> float:
    """When a trainer that is still parked for the decision ends itself."""
    since = decision.park_asked_unix_s
    return (facts.now_unix_s if since is None else since) + policy.park_within_s + WAITS_PARKED_S


def release_of(decision: Rollback, facts: Facts) -> Release | None:
    """Lets the trainer train on that is parked for a decision which goes no further; None where it is not parked for
    it, or files have moved: what it trains on is not what the files say then."""
    parked = facts.liveness.parked
    if parked is None or not decision.in_place or decision.begun or decision.resumed:
        return None
    known = life_of(facts.liveness, except_for=decision.id)
    return Release(parked.attempt, decision.id) if known.life is Life.PARKED else None
