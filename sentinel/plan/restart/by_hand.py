"""plan_by_hand(wanted, facts, policy) -> Plan: the rollback that a person asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sentinel.plan.choose.mitigation import overrides_for, plain_overrides
from sentinel.plan.choose.policy import Policy
from sentinel.plan.choose.target import Target
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import incident_id, rollback_id
from sentinel.plan.observation import SpoiltSpan
from sentinel.plan.restart.decision import decision_of, unapplied_by
from sentinel.plan.restart.in_place.way import Asked, way_of
from sentinel.plan.restart.rollback import Plan, no_room, plan_rollback
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualRollback:
    """What the person said."""

    to: str  # a tag, or "scratch"
    rung: str | None = None
    seed: int | None = None
    start: bool = True
    restart: Asked | None = None  # in the same processes, or by a new job; None: as the rung and the policy say
    force: bool = False


def plan_by_hand(wanted: ManualRollback, facts: Facts, policy: Policy) -> Plan:
    """The plan for a person's own rollback, or a refusal. The budget is sentinel's own and does not bind a person."""
    target = None if wanted.to == "scratch" else facts.folders.checkpoint(wanted.to)
    if wanted.to != "scratch" and target is None:
        near = ", ".join(c.tag for c in facts.folders.checkpoints[-5:])
        if not near:
            return Plan(refusal=f"there is no checkpoint {wanted.to!r}: the run has none")
        return Plan(refusal=f"there is no checkpoint {wanted.to!r}; the last ones are {near}")
    if wanted.restart is not None and not wanted.start:
        return Plan(refusal="--restart says how the job is started again, and --no-start that it is not")
    step = target.global_step if target else 0
    onset = facts.verdict.onset_range
    if onset is not None and step >= onset[0] and not wanted.force:
        return Plan(
            refusal=f"{wanted.to} is after the onset (step {onset[0]}) and contains the divergence; use an earlier "
            "target or pass --force"
        )
    if target is not None and not wanted.force and (unhealthy := facts.readings.unhealthy_at(step)) is not None:
        why = unhealthy.reason
        if isinstance(unhealthy, SpoiltSpan):
            return Plan(refusal=f"{target.tag} is not certified: {why}; use an earlier target or pass --force")
        return Plan(refusal=f"{target.tag} contains the divergence: {why}; use an earlier target or pass --force")
    if wanted.start and not wanted.force and (refused := no_room(facts)) is not None:
        return refused
    incident = incident_id(facts.next_incident)
    try:
        overrides = _overrides(wanted, facts, policy, incident, step)
    except ConfigError as error:
        return Plan(refusal=str(error))
    if wanted.start and (unapplied := unapplied_by(overrides, facts.settings.baseline, facts)) is not None:
        return Plan(refusal=unapplied)
    way = None
    if wanted.start:
        rung = next((r.restart for r in policy.ladder if r.name == wanted.rung), None)
        way = way_of(facts, policy, rung=rung, asked=wanted.restart)
        if way.refused:
            return Plan(refusal=f"{way.why}; `--restart job` starts a new job")
    decision = decision_of(
        overrides,
        facts.settings.baseline,
        facts,
        rung=wanted.rung or "by hand",
        hypothesis="a person's",
        target=Target(tag=target.tag if target else None, global_step=step, reason=f"a person asked for {wanted.to}"),
        way=way,
    )
    plan = plan_rollback(decision, facts, policy)
    return replace(plan, decision=None if plan.refusal else decision, way=way, reason=f"back to {wanted.to}")


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
