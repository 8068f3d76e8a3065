"""approval_of(incident, decision, facts, policy, memory): a person's yes to just this decision, or the turn that asks
for it, in mode approve."""

from __future__ import annotations

from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident, Rollback, digest_of
from sentinel.plan.incident.log_events import Approved, Expired, Proposed
from sentinel.plan.outcome import Memory, Turn
from sentinel.plan.restart.actions import VerifyCheckpoint


def approval_of(
    incident: Incident, decision: Rollback, facts: Facts, policy: Policy, memory: Memory
) -> Approved | Turn:
    """A person's yes to just this decision, as the event to record; else the turn that asks for it or waits."""
    digest, proposal = digest_of(decision), incident.proposal
    if proposal is None or proposal.digest != digest:
        reason = "a person is asked to agree" if proposal is None else "the plan has changed: a person is asked again"
        return Turn(reason=reason, records=(Proposed.of(incident.id, decision, digest=digest),))
    if proposal.expired:
        return Turn(reason="the proposal has expired unanswered: nothing is done")
    approval = facts.person.approvals.get(incident.id)
    if approval is not None and approval.digest == digest:
        if decision.saved_tag is None or digest in memory.verified_for:
            return Approved(incident=incident.id, digest=digest, by=approval.by)
        again = VerifyCheckpoint(decision.saved_tag)  # their yes may be hours old
        reason = f"approved by {approval.by}: {decision.saved_tag} is read once more"
        return Turn(reason=reason, actions=(again,), incident=incident.id, verified_for=digest)
    if facts.now_unix_s - proposal.proposed_unix_s > policy.approve_within_s:
        reason = f"no approval came within {policy.approve_within_s:.0f} s"
        return Turn(reason=reason, records=(Expired(incident=incident.id, digest=digest),))
    return Turn(reason=f"waits for `sentinel approve {incident.id}`")
