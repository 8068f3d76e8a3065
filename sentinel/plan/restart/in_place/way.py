"""way_of(facts, policy) -> Way: whether a rollback resumes the training in its own processes, or starts a new job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts

Asked = Literal["in_place", "job"]  # by a person, for one rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a rollback restarts the training."""

    in_place: bool = False
    why: str  # as a sentence
    refused: bool = False  # whether nothing but in place is wanted, and that can't be


def way_of(facts: Facts, policy: Policy, *, rung: Asked | None = None, asked: Asked | None = None) -> Way:
    """By a person's word, else the rung's, else the policy's; in place only where the newest attempt has declared that
    it can park, and nothing that is seen hinders it."""
    if asked == "job":
        return Way(why="a new job: a person asked for it")
    if asked is None and rung == "job":
        return Way(why="a new job: the rung asks for it")
    if asked is None and policy.restart == "job":
        return Way(why='a new job: [policy] restart is "job"')
    if (why := _hindrance(facts, policy)) is None:
        number = facts.newest_attempt
        return Way(in_place=True, why=f"in the same processes: attempt {number} has declared that it can park")
    runs = any(not writer.pending for writer in facts.jobs.writers)
    refused = asked == "in_place" or (policy.restart == "in_place" and runs)
    return Way(why=f"{'not in the same processes' if refused else 'a new job'}: {why}", refused=refused)


def _hindrance(facts: Facts, policy: Policy) -> str | None:
    attempt = facts.latest
    running = [writer for writer in facts.jobs.writers if not writer.pending]
    if attempt is None or attempt.number < max((a.number for a in facts.liveness.attempts), default=0):
        return "no attempt has reported its start"
    if not running or attempt.finished:
        return f"attempt {attempt.number} does not run any more"
    if not attempt.can_park:
        return f"attempt {attempt.number} has not declared that it can park"
    if (parked := facts.liveness.parked) is not None:  # it takes no other PARK meanwhile
        by = "no watch carries on in mode observe" if policy.mode == "observe" else "`sentinel watch` carries on"
        return f"attempt {parked.attempt} is parked for {parked.rollback}, which {by}"
    if facts.jobs.start.rewrites_script:
        return "its changes are made in the job script, which a trainer reads only when it starts"
    return too_short(facts, policy)


def too_short(facts: Facts, policy: Policy) -> str | None:
    """That the job ends too soon, or that its scheduler does not say when."""
    left = {w.id: w.remaining_s for w in facts.jobs.writers if not w.pending and w.remaining_s is not None}
    for job, remaining_s in left.items():
        if math.isnan(remaining_s):
            return f"the scheduler does not say how much is left of the time limit of {job}"
        if remaining_s < policy.min_remaining_s:
            return (
                f"{remaining_s:.0f} s are left of the time limit of {job}, and [policy] min_remaining_s is "
                f"{policy.min_remaining_s:.0f}"
            )
    return None
