"""`rollback` and `undo`: what a person decides."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import typer

from sentinel.act.observe import Look, Neighbours, baseline_of
from sentinel.act.undo import take_back, undo_incident
from sentinel.act.watch import carry_out, decided_event
from sentinel.adapters.lock import RunLock
from sentinel.cli import wiring
from sentinel.config import Config
from sentinel.plan.actions import Action, VerifyCheckpoint, describe, to_json
from sentinel.plan.by_hand import Wanted, plan_by_hand
from sentinel.plan.incident import Rollback, baseline_to_json, incident_id, overrides_to_json
from sentinel.plan.recovery import Plan
from sentinel.vocabulary.numbers import dump_json

__all__ = ["Wanted", "rollback", "undo"]


def rollback(config: Config, wanted: Wanted, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Plans, shows, asks, and carries out. 1 when it is refused."""
    near = wiring.neighbours_of(config)
    observer = wiring.observer_of(config, near)
    look = observer.look(wiring.clock())
    target = look.run.checkpoint(wanted.to)
    if target is not None and target.complete:  # reading is no change: the dry run knows whether the target is whole
        observer.verified(near.checkpoints.verify(target.tag))
        look = observer.look(wiring.clock())
    plan = plan_by_hand(wanted, look.verdict, look.run, config.policy)
    incident = incident_id(len(look.run.incidents) + 1)
    _show(plan, incident, as_json=as_json)
    if plan.refusal is not None or plan.decision is None:
        return 1
    if dry_run:
        return 0
    if not yes and not _agreed("Do this?"):
        return 1
    with RunLock(near.state_dir):
        perform = wiring.performer_of(config, near, observer)
        _open_by_hand(near, look, incident, plan.decision)
        carry_out(plan.decision, incident, observer, perform, lambda e: _record(near, e), config.policy, wiring.clock)
        _record(near, {"event": "applied", "incident": incident, "rollback": plan.decision.id})
        if not plan.decision.restart:
            why = "rolled back; the job was left to be started by hand"
            _record(near, {"event": "closed", "incident": incident, "outcome": "superseded", "reason": why})
    typer.echo(f"{incident}: done; `sentinel undo {incident}` takes it back", err=True)
    return 0


def undo(config: Config, incident: str | None, *, yes: bool) -> int:
    """Takes an incident's rollbacks back, the last one first."""
    near = wiring.neighbours_of(config)
    observer = wiring.observer_of(config, near)
    look = observer.look(wiring.clock())
    chosen = undo_incident(look.run.incidents, incident)
    typer.echo(f"undo {chosen.id}: {', '.join(r.id for r in reversed(chosen.rollbacks))}; the job is stopped first")
    if not yes and not _agreed("Do this?"):
        return 1
    with RunLock(near.state_dir):
        take_back(chosen, near, observer, config.launcher.stop_grace_s, lambda e: _record(near, e))
    typer.echo(f"{chosen.id} is undone; start the job again when you are ready")
    return 0


def _show(plan: Plan, incident: str, *, as_json: bool) -> None:
    decision = plan.decision
    target = {"tag": decision.target_tag, "global_step": decision.target_step} if decision else None
    if as_json:
        actions = [to_json(action) for action in plan.actions]
        typer.echo(dump_json({"incident": incident, "target": target, "actions": actions, "refusal": plan.refusal}))
        return
    if plan.refusal is not None:
        typer.echo(f"refused: {plan.refusal}")
        return
    typer.echo(f"{incident}: {plan.reason}")
    for number, line in enumerate(_lines(plan.actions), 1):
        typer.echo(f"  {number}. {line}")
    if decision is not None and decision.changes:
        typer.echo(f"  changes: {'; '.join(decision.changes)}")
    if decision is not None:
        typer.echo(f"  {decision.lost_steps} steps are lost; nothing is deleted")


def _lines(actions: tuple[Action, ...]) -> list[str]:
    return [describe(action) for action in actions if not isinstance(action, VerifyCheckpoint)]


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        typer.echo("nobody is there to be asked: say --yes", err=True)
        return False
    return typer.confirm(question)


def _open_by_hand(near: Neighbours, look: Look, incident: str, decision: Rollback) -> None:
    attempt = look.history.latest
    for other in look.run.incidents:
        if other.status != "closed":
            said = f"{incident} by a person takes its place"
            _record(near, {"event": "closed", "incident": other.id, "outcome": "superseded", "reason": said})
    _record(
        near,
        {
            "event": "opened",
            "incident": incident,
            "attempt": attempt.number if attempt else 0,
            "onset_range": None,
            "alarm_step": None,
            "onset_tokens": None,
            "best_mean": None,
            "reason": f"a person asked for {decision.target_tag or 'scratch'}",
            "led_by": [],
            "baseline": baseline_to_json(baseline_of(attempt.started if attempt else None)),
            "overrides": overrides_to_json(look.run.overrides),
        },
    )
    _record(near, decided_event(incident, decision))


def _record(near: Neighbours, event: Mapping[str, Any]) -> None:
    near.incident_log.append({**event, "time_unix_s": wiring.clock()})
