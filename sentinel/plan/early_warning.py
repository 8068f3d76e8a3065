"""What follows from an early warning: an earlier checkpoint is pinned, and a save is asked for. Never a rollback."""

from __future__ import annotations

from sentinel.plan.actions import KINDS, AskForSave
from sentinel.plan.alert_state import Alert, alert_states
from sentinel.plan.look import Look
from sentinel.plan.policy import Policy

_SAVES_APART_STEPS = 1000  # Steps between two saves that are asked for, whatever is warned of
_FRESH_STEPS = 50  # Steps within which a checkpoint is new enough: no save is asked for


def alert(look: Look, policy: Policy) -> Alert:
    """Each warning is told once: after a rollback one from before the target is in force again."""
    warning = look.series.warning if policy.warn != "off" else None
    reason = None if warning is None else warning.reason
    lasts = "early_warning" in alert_states(look.events)
    told = any(
        e["event"] == "alert_firing" and (e["topic"], e["reason"]) == ("early_warning", reason) for e in look.events
    )
    return Alert(topic="early_warning", reason=None if told and not lasts else reason, severity="warning")


def warned_pin(look: Look, policy: Policy) -> str | None:
    """The newest whole checkpoint from before the rise, where it is not pinned for good already."""
    warning = look.series.warning
    if warning is None or policy.warn not in ("pin", "save"):
        return None
    limit = warning.since_step - policy.margin_steps
    before = [c for c in look.run.checkpoints if c.complete and c.global_step <= limit]
    newest = next((c for c in reversed(before) if look.run.unhealthy_at(c.global_step) is None), None)
    return None if newest is None or newest.only_pinned else newest.tag


def save_asked(look: Look, policy: Policy) -> AskForSave | None:
    """The request for a save, once for each warning: None where a checkpoint is new enough, or one was asked for not
    long ago. Not while a person has paused the run, or an incident is open: its target is from before."""
    warning, run = look.series.warning, look.run
    if warning is None or policy.warn != "save" or policy.mode == "observe" or run.paused or run.open_incident:
        return None
    newest = max((c.global_step for c in run.checkpoints if c.complete), default=0)
    intents = (e["action"] for e in look.events if e["event"] == "intent")
    asked = [int(action["step"]) for action in intents if action["kind"] == KINDS[AskForSave]]
    recent = any(0 <= warning.step - step < _SAVES_APART_STEPS for step in asked)
    if newest >= warning.step - _FRESH_STEPS or recent:
        return None
    return AskForSave(warning.step, warning.reason)
