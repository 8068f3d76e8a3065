"""What follows from a start that does not go on with its run: a page, and where the owner wants it, a stop."""

from __future__ import annotations

from sentinel.judge.verdict import VerdictKind
from sentinel.plan.actions import StopJob
from sentinel.plan.alert_state import Alert
from sentinel.plan.liveness import hindered
from sentinel.plan.look import Look, Turn
from sentinel.plan.policy import Policy
from sentinel.plan.rollback import on_hold
from sentinel.plan.start_audit import Continued, StartAudit, audits_of


def newest_audit(look: Look) -> StartAudit | None:
    """Of the newest attempt, as far as it is settled."""
    attempt = look.history.latest
    if look.start is not None:
        return look.start if look.start.settled else None
    return audits_of(look.events).get(attempt.number) if attempt is not None else None


def alert(look: Look) -> Alert:
    found = newest_audit(look)
    if found is None or found.verdict is not Continued.NO:
        return Alert(topic="bad_start")
    return Alert(topic="bad_start", reason=found.reason, severity="critical" if found.spoils else "warning")


def bad_start_turn(look: Look, policy: Policy) -> Turn | None:
    """Stops the job, and leaves it down; None where the start is not known to be bad, or that is not wanted."""
    found, run = newest_audit(look), look.run
    if found is None or found.verdict is not Continued.NO or not (policy.stop_bad_start and policy.mode == "act"):
        return None
    if run.open_incident is not None and run.open_incident.status != "holding":  # its proof settles it
        return None
    if look.verdict.kind is VerdictKind.DOWN and not run.jobs.writers:
        why = f"{found.reason}; it was stopped (stop_bad_start), and a person starts it again"
        return Turn(reason=why, message=why, down=why)
    why = f"{found.reason}; it is stopped (stop_bad_start)"
    waits = hindered(run) or (held.refusal if (held := on_hold(run)) is not None else None)
    if waits is not None or not run.jobs.known or not run.jobs.writers:
        return Turn(reason=waits or found.reason, message=waits)
    return Turn(reason=why, message=why, actions=(StopJob(tuple(w.id for w in run.jobs.writers)),))
