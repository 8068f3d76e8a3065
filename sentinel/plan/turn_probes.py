"""turn_beside(incident, look, policy) -> Turn: an incident's race, or its bisect, one step further."""

from __future__ import annotations

from dataclasses import replace

from sentinel.plan.actions import FollowBisect, StartProbe, StopJob, StopProbe
from sentinel.plan.incident import Incident, Race
from sentinel.plan.incident_events import decided, event, stopped
from sentinel.plan.liveness import hindered
from sentinel.plan.look import Look, Outcome, Turn
from sentinel.plan.policy import Policy
from sentinel.plan.race import adoption, next_of_race
from sentinel.plan.rollback import Plan, on_hold


def turn_beside(incident: Incident, look: Look, policy: Policy) -> Turn | None:
    """The incident's race or bisect one step further; None where neither goes on. The run's job is stopped before the
    first probe begins, and nothing of the run moves by them."""
    race, bisect = incident.race, incident.bisect
    if race is not None:
        what, after_attempt = "race", race.after_attempt
    elif bisect is not None and incident.bisecting:
        what, after_attempt = "bisect", bisect.after_attempt
    else:
        return None
    if policy.mode != "act":
        message = f"a {what} of {incident.id} is half done, and mode is {policy.mode}: its probes are left as they are"
        return Turn(reason=message, message=message)
    if (refused := on_hold(look.run)) is not None:
        return refused_turn(refused, incident)
    if (why := hindered(look.run)) is not None:
        return Turn(reason=why, message=why)
    if after_attempt is not None and (look.newest_attempt or 0) > after_attempt:
        return stop_turn(
            incident, f"attempt {look.newest_attempt} began during the {what} of {incident.id}: it is left running"
        )
    if race is not None and race.winner is not None:
        decision = adoption(race, race.winner, incident, look.run)
        return Turn(reason=race.over or "", records=(decided("decided", incident.id, decision),))
    if writers := tuple(w.id for w in look.run.jobs.writers):
        reason = f"the job is stopped before the {what}"
        return Turn(reason=reason, actions=(StopJob(writers),), incident=incident.id)
    return _bisect(incident, look) if race is None else _race(incident, race, look)


def _bisect(incident: Incident, look: Look) -> Turn:
    found = look.run.bisect
    if found is not None and found.over:
        ended = event("bisect_ended", incident.id, reason=found.reason, gpu_hours=found.gpu_hours)
        return Turn(reason=found.reason, records=(ended,))
    reason = found.reason if found is not None else "the bisect is not seen"
    actions = (FollowBisect(incident.id),) if found is not None else ()
    return Turn(reason=reason, actions=actions, on_record=False, incident=incident.id)


def _race(incident: Incident, race: Race, look: Look) -> Turn:
    step = next_of_race(race, look.race, incident, look.races_at_once)
    turn = Turn(reason=step.reason, records=(step.ended,) if step.ended is not None else (), incident=incident.id)
    if step.start is not None:
        return replace(turn, actions=(StartProbe(step.start, incident.id),))
    return replace(turn, actions=(StopProbe(step.stop, incident.id),) if step.stop is not None else ())


def refused_turn(plan: Plan, incident: Incident) -> Turn:
    why = plan.refusal or plan.reason
    return Turn(reason=why, message=why) if plan.waits else stop_turn(incident, why)


def stop_turn(incident: Incident, reason: str) -> Turn:
    return Turn(reason=reason, records=(stopped(incident.id, reason),), outcome=Outcome.PERSON_NEEDED)
