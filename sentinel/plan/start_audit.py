"""audit(start) -> StartAudit: whether an attempt goes on with its run, by its first 20 steps. Pure.

What a rung has decided is no fault. Of several contradictions the likeliest cause is named: what was loaded comes
before what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sentinel.plan.evidence import FIRST_STEPS
from sentinel.plan.incident import Event, Proof
from sentinel.plan.proof import Check
from sentinel.plan.start import FIRST, Start
from sentinel.plan.start_checks import (
    MOMENTS,
    SHARD,
    WRONG,
    loss,
    loss_scale,
    override,
    position,
    settings,
    state,
    whence,
)
from sentinel.plan.start_curves import data, learning_rate

_IN_ORDER = (state, override, learning_rate, position, loss_scale, data, settings, loss)
_SPOILS = frozenset({WRONG, SHARD, MOMENTS})  # faults that make another model of what is saved next


class Continued(StrEnum):
    """Unknown never acts."""

    YES = "continued"
    NO = "not continued"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAudit:
    attempt: int
    resumed_from: int  # 0 from scratch
    verdict: Continued
    reason: str  # as a sentence; names the likeliest fault
    fault: str | None = None  # in the words of docs/STARTS.md
    settled: bool = True  # whether further steps are not waited for
    checks: tuple[Check, ...] = ()

    @property
    def spoils(self) -> bool:
        """Whether the checkpoints that are saved next hold another model than the run's."""
        return self.fault in _SPOILS


def audit(start: Start) -> StartAudit:
    """The verdict so far; `settled` once a fault is seen, or the first 20 steps were, or no more will come."""
    known: dict[str, Any] = {"attempt": start.started.attempt, "resumed_from": start.resumed_from}
    checks = list(whence(start))
    seen = len(start.samples) >= FIRST or start.over
    if start.ancestor is not None and start.resumed_from:
        checks += [check for compared in _IN_ORDER for check in compared(start, start.ancestor)]
    wrong = [check for check in checks if check.answer is Proof.CONTRADICTED]
    enough = len(start.samples) >= FIRST_STEPS or start.over
    if wrong and (enough or wrong[0].what in _SPOILS):
        first, others = wrong[0], sorted({c.what for c in wrong[1:]} - {wrong[0].what})
        also = f"; seen with it: {', '.join(others)}" if others else ""
        why = f"{first.what}: {first.why}{also}"
        return StartAudit(**known, verdict=Continued.NO, reason=why, fault=first.what, checks=tuple(checks))
    sure = {check.what for check in checks if check.answer is Proof.CONFIRMED}
    if "position" in sure and sure & {"state", "loss"}:
        why = f"goes on from step {start.resumed_from}: {', '.join(sorted(sure))} are as they were"
        verdict = Continued.YES
    else:
        missing = "; ".join(f"{c.what}: {c.why}" for c in checks if c.answer is Proof.NOT_VERIFIED)
        verdict, why = Continued.UNKNOWN, missing or "nothing is known of the run before"
    return StartAudit(**known, verdict=verdict, reason=why, settled=seen, checks=tuple(checks))


def audited(found: StartAudit) -> Event:
    """For the incident log."""
    facts = {"attempt": found.attempt, "resumed_from": found.resumed_from, "verdict": str(found.verdict)}
    told = [check.to_json() for check in found.checks]
    return {"event": "start_audited", "incident": None, **facts, "fault": found.fault, "reason": found.reason} | {
        "checks": told
    }


def audits_of(events: tuple[Event, ...]) -> Mapping[int, StartAudit]:
    """Attempt -> its audit, as the incident log has it."""
    names = ("attempt", "resumed_from", "reason", "fault")
    found = [
        StartAudit(**{name: e[name] for name in names}, verdict=Continued(e["verdict"]))
        for e in events
        if e["event"] == "start_audited"
    ]
    return {one.attempt: one for one in found}
