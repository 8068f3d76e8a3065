"""plan_by_hand(wanted, facts, policy) -> Plan: the rollback that a person asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sentinel.plan.choose.mitigation import overrides_for, plain_overrides
from sentinel.plan.choose.policy import Policy
from sentinel.plan.choose.target import Target, on_disk_before
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Rollback, incident_id, rollback_id
from sentinel.plan.observation import Checkpoint
from sentinel.plan.readings_seen import SpoiltSpan
from sentinel.plan.restart.decision import decision_of, on_disk_of, unapplied_by
from sentinel.plan.restart.in_place.held import held_in_memory
from sentinel.plan.restart.in_place.way import Asked, Way, way_of
from sentinel.plan.restart.rollback import Plan, no_room, plan_rollback
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides
from sentinel.vocabulary.parking import memory_tag, step_in_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualRollback:
    """What the person said."""

    to: str  # a checkpoint's tag, memory:STEP, or "scratch"
    rung: str | None = None
    seed: int | None = None
    start: bool = True
    restart: Asked | None = None  # in the same processes, or by a new job; None: as the rung and the policy say
    force: bool = False


def plan_by_hand(wanted: ManualRollback, facts: Facts, policy: Policy) -> Plan:
    """The plan for a person's own rollback, or a refusal. The budget is sentinel's own and does not bind a person."""
    target = None if wanted.to == "scratch" else facts.folders.checkpoint(wanted.to)
    held = step_in_memory(wanted.to)
    if (refused := _not_there(wanted, facts, policy)) is not None:
        return refused
    if wanted.restart is not None and not wanted.start:
        return Plan(refusal="--restart says how the job is started again, and --no-start that it is not")
    step = target.global_step if target else held or 0
    if not wanted.force and (unhealthy := _unhealthy(wanted, step, facts)) is not None:
        return unhealthy
    if wanted.start and not wanted.force and (refused := no_room(facts)) is not None:
        return refused
    way = _way(wanted, facts, policy) if wanted.start else None
    if way is not None and way.refused:
        return Plan(refusal=f"{way.why}; `--restart job` starts a new job")
    reason = f"a person asked for {wanted.to}"
    tag = wanted.to if held is not None else target.tag if target is not None else None
    try:
        decision = _to(Target(tag=tag, global_step=step, reason=reason), wanted, way, facts, policy)
        if held is not None:
            before = on_disk_before(held, facts.folders, facts.readings)
            decision.on_disk = on_disk_of(_to(before, wanted, way, facts, policy))
    except ConfigError as error:
        return Plan(refusal=str(error))
    if wanted.start and (unapplied := unapplied_by(decision.overrides, facts.settings.baseline, facts)) is not None:
        return Plan(refusal=unapplied)
    plan = plan_rollback(decision, facts, policy)
    return replace(plan, decision=None if plan.refusal else decision, way=way, reason=f"back to {wanted.to}")


def read_first(wanted: ManualRollback, facts: Facts) -> Checkpoint | None:
    """The checkpoint that is to be read whole before the plan is made: the target, or for a state in memory what takes
    its place on disk; None where there is none, or it is read."""
    if (held := step_in_memory(wanted.to)) is not None:
        tag = on_disk_before(held, facts.folders, facts.readings).tag
        found = None if tag is None else facts.folders.checkpoint(tag)
    else:
        found = facts.folders.checkpoint(wanted.to)
    unread = found is not None and found.complete and found.verified is None and not found.only_pinned
    return found if unread else None


def _unhealthy(wanted: ManualRollback, step: int, facts: Facts) -> Plan | None:
    onset = facts.verdict.onset_range
    if onset is not None and step >= onset[0]:
        return Plan(
            refusal=f"{wanted.to} is after the onset (step {onset[0]}) and contains the divergence; use an earlier "
            "target or pass --force"
        )
    if not step or (unhealthy := facts.readings.unhealthy_at(step)) is None:
        return None
    why = unhealthy.reason
    if isinstance(unhealthy, SpoiltSpan):
        return Plan(refusal=f"{wanted.to} is not certified: {why}; use an earlier target or pass --force")
    return Plan(refusal=f"{wanted.to} contains the divergence: {why}; use an earlier target or pass --force")


def _not_there(wanted: ManualRollback, facts: Facts, policy: Policy) -> Plan | None:
    if (held := step_in_memory(wanted.to)) is not None:
        return _not_in_memory(held, wanted, facts, policy)
    if wanted.to == "scratch" or facts.folders.checkpoint(wanted.to) is not None:
        return None
    near = ", ".join(c.tag for c in facts.folders.checkpoints[-5:])
    if not near:
        return Plan(refusal=f"there is no checkpoint {wanted.to!r}: the run has none")
    return Plan(refusal=f"there is no checkpoint {wanted.to!r}; the last ones are {near}")


def _way(wanted: ManualRollback, facts: Facts, policy: Policy) -> Way:
    rung = next((r.restart for r in policy.ladder if r.name == wanted.rung), None)
    return way_of(facts, policy, rung=rung, asked=wanted.restart)


def _not_in_memory(step: int, wanted: ManualRollback, facts: Facts, policy: Policy) -> Plan | None:
    """The refusal to go back to a state in memory that is not there, or that only the same processes can go back to."""
    held = held_in_memory(facts)
    if not held:
        return Plan(refusal=f"there is no state {wanted.to} in memory; the trainer keeps none")
    if step not in held:
        there = ", ".join(map(memory_tag, held))
        return Plan(refusal=f"there is no state {wanted.to} in memory; those there are {there}")
    if facts.folders.by_newest:
        return Plan(refusal=f"{wanted.to}: nothing but the newest checkpoint would say what comes before it on disk")
    if not wanted.start:
        return Plan(refusal=f"{wanted.to} is in the memory of the trainer's processes: --no-start would end them")
    if not (way := _way(wanted, facts, policy)).in_place:
        return Plan(refusal=f"{wanted.to} is in the memory of the trainer's processes, and the restart is {way.why}")
    return None


def _to(target: Target, wanted: ManualRollback, way: Way | None, facts: Facts, policy: Policy) -> Rollback:
    """The decision, for that target. ConfigError where the rung can't be made of it."""
    incident = incident_id(facts.next_incident)
    return decision_of(
        _overrides(wanted, facts, policy, incident, target.global_step),
        facts.settings.baseline,
        facts,
        rung=wanted.rung or "by hand",
        hypothesis="a person's",
        target=target,
        way=way,
    )


def _overrides(wanted: ManualRollback, facts: Facts, policy: Policy, incident: str, step: int) -> Overrides:
    at: dict[str, Any] = {"incident": incident, "rollback": rollback_id(incident, 1), "anchor": Anchor(global_step=0)}
    if step:
        at["anchor"] = facts.readings.anchor(step)
    if wanted.rung is None:
        overrides = plain_overrides(facts.settings.baseline, **at)
    else:
        rung = next((r for r in policy.ladder if r.name == wanted.rung), None)
        if rung is None:
            known = ", ".join(r.name for r in policy.ladder)
            raise ConfigError(f"the ladder has no rung {wanted.rung!r}; it has {known}")
        past, seed = _onset_past(facts, policy), facts.settings.new_seed(facts.settings.baseline)
        overrides = overrides_for(rung, facts.settings.baseline, **at, new_seed=seed, onset_past=past)
    if wanted.seed is not None:
        overrides = replace(overrides, once=replace(overrides.once or Once(id=at["rollback"]), seed=wanted.seed))
    return overrides


def _onset_past(facts: Facts, policy: Policy) -> int | None:
    """consumed_samples up to `margin_steps` past the late end of the onset, as far as the journals know it."""
    onset = facts.verdict.onset_range
    late = onset[1] if onset is not None else math.inf
    known = [step for step in facts.readings.positions if late <= step <= late + policy.margin_steps]
    return facts.readings.positions[max(known)].consumed_samples if known else None
