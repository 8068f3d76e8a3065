"""needs_of(facts, policy) -> Needs: what is dear to read, and has to be read before the turn is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts, started_for
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.turn import opens_incident
from sentinel.plan.turn_incident import to_preview


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What is to be read for one turn; what a field has no value for is not."""

    onset_range: tuple[int, int] | None = None  # the samples around these steps: an incident is to be opened
    preview: Rollback | None = None  # whether the job script can carry this decision
    evidence_for: Incident | None = None  # the newest attempt's first steps, which have to prove its rollback
    recovery_of: Incident | None = None  # whether the restart of its rollback has recovered


def needs_of(facts: Facts, policy: Policy) -> Needs:
    onset_range = facts.verdict.onset_range if opens_incident(facts) else None
    needs, incident = Needs(onset_range=onset_range, preview=to_preview(facts, policy)), facts.open_incident
    rollback = incident.current if incident is not None else None
    if incident is None or rollback is None or started_for(facts, rollback) is None:
        return needs
    if incident.status != "holding":
        return replace(needs, evidence_for=incident)
    if facts.verdict.kind is VerdictKind.DIVERGED or incident.onset_range is None:
        return needs
    return replace(needs, recovery_of=incident)
