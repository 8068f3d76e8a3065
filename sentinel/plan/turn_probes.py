"""turn_beside(incident, facts, policy) -> Turn: an incident's bisect one step further, and what a restart takes over
from it."""

from __future__ import annotations

from dataclasses import replace

from sentinel.plan import bisect
from sentinel.plan.actions import FollowBisect, StopJob
from sentinel.plan.bisect import CONTROL, Question, Results, next_probes
from sentinel.plan.bisect_answer import answer
from sentinel.plan.facts import Facts, Outcome, Turn
from sentinel.plan.incident import Incident
from sentinel.plan.incident_events import event, stopped
from sentinel.plan.liveness import hindered, settles
from sentinel.plan.observation import BisectSeen
from sentinel.plan.policy import Policy
from sentinel.plan.rollback import Plan, on_hold


def turn_beside(incident: Incident, facts: Facts, policy: Policy) -> Turn | None:
    """The incident's bisect one step further; None where none goes on. The run's job is stopped before the first probe
    begins, and nothing of the run moves by them."""
    if incident.bisect is None or not incident.bisecting:
        return None
    if policy.mode != "act":
        message = f"a bisect of {incident.id} is half done, and mode is {policy.mode}: its probes are left as they are"
        return Turn(reason=message, message=message)
    if (refused := on_hold(facts.run)) is not None:
        return refused_turn(refused, incident)
    if (why := hindered(facts.run)) is not None:
        return Turn(reason=why, message=why)
    if (facts.newest_attempt or 0) > incident.bisect.after_attempt:
        return stop_turn(
            incident, f"attempt {facts.newest_attempt} began during the bisect of {incident.id}: it is left running"
        )
    if writers := tuple(w.id for w in facts.run.jobs.writers):
        reason = "the job is stopped before the bisect"
        return Turn(reason=reason, actions=(StopJob(writers),), incident=incident.id)
    if (why := settles(facts.run)) is not None:
        return Turn(reason=why, message=why)
    found = facts.run.bisect
    if found is not None and found.over:
        ended = event("bisect_ended", incident.id, reason=found.reason, gpu_hours=found.gpu_hours)
        return Turn(reason=found.reason, records=(ended,))
    reason = found.reason if found is not None else "the bisect is not seen"
    actions = (FollowBisect(incident.id),) if found is not None else ()
    return Turn(reason=reason, actions=actions, on_record=False, incident=incident.id)


def asks_for_cause(incident: Incident | None, policy: Policy) -> bool:
    """Whether the incident's next rung follows from its bisect, or that bisect goes on."""
    if incident is None or incident.status != "open" or incident.tried >= len(policy.ladder):
        return False
    return policy.ladder[incident.tried].bisect


def seen_of(question: Question, results: Results, *, running: bool, refusal: str | None) -> BisectSeen:
    """Where the bisect stands; once it is over, with what a restart that follows from it changes. A cause that is only
    possible is none to act upon."""
    waiting, begin = next_probes(question, results), question.probes[CONTROL]
    taken = [result.gpu_hours for result in results.values() if result.gpu_hours is not None]
    seen = BisectSeen(
        reason=f"the bisect has {len(results)} results; next: {', '.join(p.name for p in waiting) or 'none'}",
        tag=begin.tag,
        global_step=begin.global_step,
        gpu_hours=sum(taken) if taken else None,
    )
    if running or (waiting and refusal is None):
        return seen
    found = answer(question, results)
    likely = next((suspect for suspect in found.ranked if suspect.sure != "possible"), None)
    if likely is None:
        return replace(seen, over=True, reason=f"no cause is likely: {found.reason}{f'; {refusal}' if waiting else ''}")
    return replace(
        seen,
        over=True,
        reason=f"{likely.cause} ({likely.sure}): {likely.why}",
        overrides=question.restarts.get(likely.probe or ""),
        needs_person=likely.cause == bisect.BROKEN_NODE,
    )


def refused_turn(plan: Plan, incident: Incident) -> Turn:
    why = plan.refusal or plan.reason
    return Turn(reason=why, message=why) if plan.waits else stop_turn(incident, why)


def stop_turn(incident: Incident, reason: str) -> Turn:
    return Turn(reason=reason, records=(stopped(incident.id, reason),), outcome=Outcome.PERSON_NEEDED)
