"""What a restart takes over from an incident's bisect, where a rung of the ladder asks for the cause. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.plan import bisect
from sentinel.plan.bisect import CONTROL, HEALS, Question, Results, answer, next_probes
from sentinel.plan.incident import Incident
from sentinel.plan.observation import BisectSeen
from sentinel.plan.policy import Policy

_FOLLOWS = {  # cause -> the probe whose change the restart takes over; of what happens once: none
    **{cause: name for name, cause in HEALS.items() if name != bisect.NODE},
    **dict.fromkeys((bisect.CHANCE, bisect.WEIGHTS, bisect.ADAM, bisect.GRADIENTS), CONTROL),
}


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
        overrides=question.restarts.get(_FOLLOWS.get(likely.cause, "")),
        needs_person=likely.cause == bisect.BROKEN_NODE,
    )
