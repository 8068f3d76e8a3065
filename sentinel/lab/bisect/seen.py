"""seen_of(question, results) -> BisectSeen: what a turn is told of the incident's bisect. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.lab.bisect import causes
from sentinel.lab.bisect.answer import answer
from sentinel.lab.bisect.causes import CONTROL, Question, Results, next_probes
from sentinel.plan.observation import BisectSeen


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
        needs_person=likely.cause == causes.BROKEN_NODE,
    )
