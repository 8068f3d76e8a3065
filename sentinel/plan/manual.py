"""A rollback that a person asks for: the same plan, with their target and their changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sentinel.judge.verdict import Verdict
from sentinel.plan.decision import decision_of
from sentinel.plan.incident import incident_id, rollback_id
from sentinel.plan.mitigation import not_applied, overrides_for, plain_overrides
from sentinel.plan.observation import RunState, SpoiltSpan
from sentinel.plan.policy import Policy
from sentinel.plan.rollback import Plan, no_room, plan_rollback
from sentinel.plan.target import Target
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the person said."""

    to: str  # a tag, or "scratch"
    rung: str | None = None
    seed: int | None = None
    start: bool = True
    force: bool = False


def plan_by_hand(wanted: Wanted, verdict: Verdict, run: RunState, policy: Policy) -> Plan:
    """The plan for a person's own rollback, or a refusal. The budget is sentinel's own and does not bind a person."""
    target = None if wanted.to == "scratch" else run.checkpoint(wanted.to)
    if wanted.to != "scratch" and target is None:
        near = ", ".join(c.tag for c in run.checkpoints[-5:])
        if not near:
            return Plan(refusal=f"there is no checkpoint {wanted.to!r}: the run has none")
        return Plan(refusal=f"there is no checkpoint {wanted.to!r}; the last ones are {near}")
    step = target.global_step if target else 0
    onset = verdict.onset_range
    if onset is not None and step >= onset[0] and not wanted.force:
        return Plan(
            refusal=f"{wanted.to} is after the onset (step {onset[0]}) and contains the divergence; use an earlier "
            "target or pass --force"
        )
    if target is not None and not wanted.force and (unhealthy := run.unhealthy_at(step)) is not None:
        why = unhealthy.reason
        if isinstance(unhealthy, SpoiltSpan):
            return Plan(refusal=f"{target.tag} is not certified: {why}; use an earlier target or pass --force")
        return Plan(refusal=f"{target.tag} contains the divergence: {why}; use an earlier target or pass --force")
    if wanted.start and not wanted.force and (refused := no_room(run)) is not None:
        return refused
    incident = incident_id(run.next_incident)
    try:
        overrides = _overrides(wanted, verdict, run, policy, incident, step)
    except ConfigError as error:
        return Plan(refusal=str(error))
    if wanted.start and (unapplied := not_applied(overrides, run.baseline, run)) is not None:
        return Plan(refusal=unapplied)
    decision = decision_of(
        overrides,
        run.baseline,
        run,
        rung=wanted.rung or "by hand",
        hypothesis="a person's",
        target=Target(tag=target.tag if target else None, global_step=step, reason=f"a person asked for {wanted.to}"),
        restart=wanted.start,
    )
    plan = plan_rollback(decision, run, policy)
    return replace(plan, decision=None if plan.refusal else decision, reason=f"back to {wanted.to}")


def _overrides(wanted: Wanted, verdict: Verdict, run: RunState, policy: Policy, incident: str, step: int) -> Overrides:
    at: dict[str, Any] = {"incident": incident, "rollback": rollback_id(incident, 1), "anchor": Anchor(global_step=0)}
    if step:
        at["anchor"] = run.positions.get(step, Anchor(global_step=step))
    if wanted.rung is None:
        overrides = plain_overrides(run.baseline, **at)
    else:
        rung = next((r for r in policy.ladder if r.name == wanted.rung), None)
        if rung is None:
            known = ", ".join(r.name for r in policy.ladder)
            raise ConfigError(f"the ladder has no rung {wanted.rung!r}; it has {known}")
        seed = max(run.seeds_used, default=run.baseline.seed or 0) + 1
        past = _onset_past(verdict, run, policy)
        overrides = overrides_for(rung, run.baseline, **at, new_seed=seed, onset_past=past)
    if wanted.seed is not None:
        overrides = replace(overrides, once=replace(overrides.once or Once(id=at["rollback"]), seed=wanted.seed))
    return overrides


def _onset_past(verdict: Verdict, run: RunState, policy: Policy) -> int | None:
    """consumed_samples up to `margin_steps` past the late end of the onset, as far as the journals know it."""
    late = verdict.onset_range[1] if verdict.onset_range is not None else math.inf
    known = [step for step in run.positions if late <= step <= late + policy.margin_steps]
    return run.positions[max(known)].consumed_samples if known else None
