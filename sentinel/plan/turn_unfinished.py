"""What is not at its end: a rollback or an undo, where a person has paused the run or has started it since; and what an
older release began."""

from __future__ import annotations

from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.incident.log_outcomes import IncidentStopped
from sentinel.plan.outcome import Outcome, Turn
from sentinel.plan.restart.actions import MOVES_FILES, Park, Release, RestorePinned, Resume, StopJob, VerifyCheckpoint
from sentinel.plan.restart.rollback import Plan, begun_since, on_hold
from sentinel.plan.turn_bisect import stop_turn

_PUT_IN_ORDER = (VerifyCheckpoint, RestorePinned, *MOVES_FILES)


def held_turn(incident: Incident, rollback: Rollback, plan: Plan, held: str, release: Release | None) -> Turn:
    """The run is paused, or has a KILL file: no job is stopped, started or resumed. Where some files have moved and
    nothing runs that may write, the others follow: a trainer can start from the result, and `latest` names a
    checkpoint. A trainer that is parked, and of which nothing has moved, is released."""
    if not rollback.begun:
        why = f"{held}; {rollback.id} is decided, and none of its files has moved: nothing more is done"
        if release is None:
            return Turn(reason=why, message=why)
        why += f", and attempt {release.attempt} is not kept parked"
        return Turn(reason=why, message=why, actions=(release,), incident=incident.id, rollback=rollback.id)
    if any(isinstance(action, StopJob | Park) for action in plan.actions):
        why = f"{held}; some files of {rollback.id} have moved, and a job of the run is there again: nothing is done"
        return Turn(reason=why, message=why, down=why)
    left = next((action for action in plan.actions if isinstance(action, _PUT_IN_ORDER)), None)
    if left is None:
        parked = any(isinstance(action, Resume) for action in plan.actions)
        left_out = "its trainer stays parked until its deadline" if parked else "the job is not started"
        why = f"{held}; all files of {rollback.id} are in place, and {left_out}"
        return Turn(reason=why, message=why, down=why)
    why = f"{held}; some files of {rollback.id} have moved: the others follow, so that the run can be started"
    return Turn(reason=why, message=why, actions=(left,), incident=incident.id, rollback=rollback.id)


def removed_turn(incident: Incident) -> Turn | None:
    """What an older release began, and no release does any more, is left to a person; None where there is no such
    thing."""
    if (tried := incident.unfinished_probes) is not None:
        return stop_turn(
            incident,
            f"{incident.id} tries {len(tried.rungs)} rungs side by side, which this release does not go on with: "
            f"the probes end after step {tried.until_step}; `sentinel undo {incident.id}` closes the incident",
        )
    rollback = incident.current
    if rollback is None or rollback.probe is None or incident.status not in ("decided", "applied"):
        return None
    return stop_turn(
        incident,
        f"{rollback.id} makes the checkpoints of {rollback.probe} the run's, which this release does not go on with: "
        f"`sentinel undo {incident.id}` gives the run's files back",
    )


def undo_turn(incident: Incident, facts: Facts, policy: Policy) -> Turn:
    """An undo that was cut short, carried to its end in mode act; not where a person has started the run since."""
    if policy.mode != "act":
        why = f"the undo of {incident.id} is unfinished: `sentinel undo` completes it"
        return Turn(reason=why, message=why)
    after = incident.undo_after_attempt
    begun = begun_since(facts, after, incident.undo_known_jobs)
    if after is None or begun is not None:
        began = "an older version began it, and did not record the newest attempt"
        if begun is not None:
            began = f"{begun[0]} began after it, and is left running"
        why = f"the undo of {incident.id} is not completed: {began}; `sentinel undo` completes it"
        told = (incident.status, incident.note) == ("stopped", why)
        records = () if told else (IncidentStopped(incident=incident.id, reason=why),)
        return Turn(reason=why, message=why, records=records, outcome=Outcome.PERSON_NEEDED)
    if (held := on_hold(facts)) is not None and (facts.jobs.writers or not incident.undo_moves):
        state = "some of its files have moved" if incident.undo_moves else "none of its files has moved"
        why = f"{held.refusal}; the undo of {incident.id} is unfinished, and {state}: nothing more is done"
        return Turn(reason=why, message=why)
    return Turn(reason=f"the undo of {incident.id} was cut short and is carried to its end", undo=(incident,))
