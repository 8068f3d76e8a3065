"""turn_beside(incident, facts, policy) -> Turn: an incident's bisect one step further, and what a restart takes over
from it."""

from __future__ import annotations

from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_outcomes import BisectEnded, IncidentStopped
from sentinel.plan.outcome import Outcome, Turn
from sentinel.plan.restart.actions import FollowBisect, StopJob
from sentinel.plan.restart.decision import rungs_left
from sentinel.plan.restart.liveness import hindered, settles
from sentinel.plan.restart.rollback import Plan, on_hold


def turn_beside(incident: Incident, facts: Facts, policy: Policy) -> Turn | None:
    """The incident's bisect one step further; None where none goes on. The run's job is stopped before the first probe
    begins, and nothing of the run moves by them."""
    if incident.bisect is None or not incident.bisecting:
        return None
    if policy.mode != "act":
        message = f"a bisect of {incident.id} is half done, and mode is {policy.mode}: its probes are left as they are"
        return Turn(reason=message, message=message)
    if (refused := on_hold(facts)) is not None:
        return refused_turn(refused, incident)
    if (why := hindered(facts.liveness)) is not None:
        return Turn(reason=why, message=why)
    if (facts.newest_attempt or 0) > incident.bisect.after_attempt:
        return stop_turn(
            incident, f"attempt {facts.newest_attempt} began during the bisect of {incident.id}: it is left running"
        )
    if writers := tuple(w.id for w in facts.jobs.writers):
        reason = "the job is stopped before the bisect"
        return Turn(reason=reason, actions=(StopJob(writers),), incident=incident.id)
    if (why := settles(facts.liveness)) is not None:
        return Turn(reason=why, message=why)
    found = facts.on_demand.bisect
    if found is not None and found.over:
        ended = BisectEnded(incident=incident.id, reason=found.reason, gpu_hours=found.gpu_hours)
        return Turn(reason=found.reason, records=(ended,))
    reason = found.reason if found is not None else "the bisect is not seen"
    actions = (FollowBisect(incident.id),) if found is not None else ()
    return Turn(reason=reason, actions=actions, on_record=False, incident=incident.id)


def asks_for_cause(incident: Incident | None, policy: Policy) -> bool:
    """Whether the incident's next rung follows from its bisect, or that bisect goes on."""
    if incident is None or incident.status != "open":
        return False
    left = rungs_left(incident, policy)
    return bool(left) and left[0].bisect


def refused_turn(plan: Plan, incident: Incident) -> Turn:
    why = plan.refusal or plan.reason
    return Turn(reason=why, message=why) if plan.waits else stop_turn(incident, why)


def stop_turn(incident: Incident, reason: str) -> Turn:
    return Turn(
        reason=reason, records=(IncidentStopped(incident=incident.id, reason=reason),), outcome=Outcome.PERSON_NEEDED
    )
