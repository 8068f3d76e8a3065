"""What the ranks of an attempt keep in memory (held_in_memory), and the health of each state (certified_in_memory)."""

from __future__ import annotations

from collections.abc import Collection

from sentinel.judge.events import Event
from sentinel.plan.facts import Facts
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.observation import Life
from sentinel.plan.restart.liveness import life_of
from sentinel.plan.starts.audit import audits_of
from sentinel.plan.starts.certificate import Certificate, verdict_at
from sentinel.vocabulary.parking import memory_tag


def held_in_memory(facts: Facts, attempt: int | None = None) -> tuple[int, ...]:
    """The steps whose states the ranks of that attempt (None: the newest) keep in memory; none once it has ended."""
    found = next((j for j in reversed(facts.readings.journals) if attempt in (None, j.number)), None)
    return found.memory if found is not None else ()


def certified_in_memory(
    facts: Facts, judged: Collection[Event], events: tuple[IncidentEvent, ...]
) -> tuple[Certificate, ...]:
    """Of each state of the newest attempt, while that is known to live, what `certificates` says of a checkpoint: every
    rank has said that it has the state whole, with its digest."""
    if life_of(facts.liveness).life not in (Life.ALIVE, Life.PARKED):
        return ()
    audit, made = audits_of(events).get(facts.newest_attempt or 0), []
    for step in held_in_memory(facts):
        verdict, why = verdict_at(step, facts, judged)
        made.append(
            Certificate(
                tag=memory_tag(step),
                global_step=step,
                whole=True,
                healthy=None if verdict is None else why is None,
                verdict=verdict,
                start=None if audit is None else str(audit.verdict),
                scanned=False,
                digest=True,
                pinned=False,
                why_not=why,
            )
        )
    return tuple(made)
