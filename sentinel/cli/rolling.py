"""`rollback`: what a person decides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import typer

from sentinel.act.following import anchor_at
from sentinel.act.perform import carry_out
from sentinel.act.undo import settle
from sentinel.adapters.lock import RunLock
from sentinel.cli.keeping import reading_bar
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.plan.actions import Action, VerifyCheckpoint, describe, to_json
from sentinel.plan.forecast import coming_saves
from sentinel.plan.incident import Rollback, incident_id
from sentinel.plan.incident_events import closed, decided, opened
from sentinel.plan.look import Look
from sentinel.plan.manual import Wanted, plan_by_hand
from sentinel.plan.observation import RunState
from sentinel.plan.policy import Policy
from sentinel.plan.price import price, unconfirmed
from sentinel.plan.rollback import Plan
from sentinel.vocabulary.errors import ConfigError, ScriptRefused, SentinelError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["Wanted", "agreed", "rollback"]


def rollback(config: Config, wanted: Wanted, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Plans, shows, asks, and carries out. 1 when it is refused."""
    wiring.insist_on_ground(config)
    lock = RunLock(wiring.state_dir_of(config))
    own = wiring.own_of(config, lock)
    parts = wiring.assemble(config, config.policy, say=lambda line: typer.echo(line, err=True), own=own)
    look, plan = _planned(parts, config, wanted)
    for half in look.run.unfinished:
        typer.echo(f"{half.id} is half done: what was begun of it is taken back first", err=True)
    diff = _diff(parts, plan)
    if isinstance(diff, SentinelError):
        plan = Plan(refusal=str(diff))
    _show(plan, look.run, incident_id(look.run.next_incident), as_json=as_json)
    if isinstance(diff, str) and not as_json:
        typer.echo(diff)
    if plan.refusal is not None or plan.decision is None:
        return 1
    if dry_run:
        return 0
    if not yes and not agreed("Do this?"):
        return 1
    with lock, wiring.delivering(parts.paging):
        look = parts.observer.look(wiring.clock())  # what was true when the plan was shown may have moved
        if look.run.unfinished:
            settle(look.run.unfinished, parts.near, parts.observer, parts.ledger)
            parts.observer.forget(tuple(c.tag for c in look.run.checkpoints))
        look, plan = _planned(parts, config, wanted)
        if plan.refusal is not None or plan.decision is None:
            typer.echo(f"refused: {plan.refusal}", err=True)
            return 1
        return _carry_out(parts, look, plan.decision, config.policy)


def _diff(parts: wiring.Parts, plan: Plan) -> str | SentinelError | None:
    """How the job script would be changed, or why it can't be; None where it is not."""
    if plan.decision is None or not plan.decision.restart:
        return None
    try:
        return parts.near.launcher.preview(parts.observer.started, plan.decision.overrides)
    except (ScriptRefused, ConfigError) as error:
        return error


def _planned(parts: wiring.Parts, config: Config, wanted: Wanted) -> tuple[Look, Plan]:
    """What is true now, and the plan for it. Reading is no change: a dry run knows whether the target is whole."""
    look = parts.observer.look(wiring.clock(), room=True)
    target = look.run.checkpoint(wanted.to)
    if target is not None and target.complete and target.verified is None and not target.only_pinned:
        with reading_bar(target.tag) as progress:
            parts.observer.verified(parts.near.checkpoints.verify(target.tag, progress=progress))
        look = parts.observer.look(wiring.clock(), room=True)
    return look, plan_by_hand(wanted, look.verdict, _with_onset(look, config.policy.margin_steps), config.policy)


def _with_onset(look: Look, margin_steps: int) -> RunState:
    """With the positions of the steps from the onset on: a rung may skip their data."""
    attempt, onset = look.history.latest, look.verdict.onset_range
    if attempt is None or onset is None:
        return look.run
    samples = [s for s in look.history.lineage(attempt) if onset[1] <= s.global_step <= onset[1] + margin_steps]
    return replace(look.run, positions={**look.run.positions, **{s.global_step: anchor_at(s) for s in samples}})


def _carry_out(parts: wiring.Parts, look: Look, decision: Rollback, policy: Policy) -> int:
    attempt, ledger = look.history.latest, parts.ledger
    number = look.run.next_incident
    for other in look.run.incidents:
        if other.status != "closed":
            ledger.record(closed(other.id, "superseded", f"{incident_id(number)}, by a person, takes its place"))
    reason = f"a person asked for {decision.target_tag or 'scratch'}"
    incident, by = incident_id(number), attempt.number if attempt else 0
    ledger.record(opened(number, by, look.run.baseline, look.run.overrides, reason=reason))
    ledger.record(decided("decided", incident, decision))
    carry_out(decision, parts.observer, parts.perform, policy, ledger, wiring.clock())
    if not decision.restart:
        ledger.record(closed(incident, "superseded", "rolled back; a person starts the job again"))
    typer.echo(f"{incident} is done; `sentinel undo {incident}` takes it back", err=True)
    return 0


def _show(plan: Plan, run: RunState, incident: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(dump_json(_document(plan, run, incident)))
        return
    if plan.refusal is not None or plan.decision is None:
        typer.echo(f"refused: {plan.refusal}")
        return
    typer.echo(f"{incident}: {plan.reason}")
    for number, line in enumerate(_lines(plan.actions), 1):
        typer.echo(f"  {number}. {line}")
    for line in _priced(plan.decision, run):
        typer.echo(f"  {line}")


def _document(plan: Plan, run: RunState, incident: str) -> dict[str, Any]:
    decision = plan.decision
    facts: dict[str, Any] = {"target": None}
    if decision is not None:
        facts = {
            "target": {"tag": decision.target_tag, "global_step": decision.target_step},
            "changes": decision.changes,
            "price": price(decision, run).to_json(),
            "coming_saves": [coming.to_json() for coming in coming_saves(decision, run)],
            "unconfirmed": unconfirmed(decision, run),
        }
    actions = [to_json(action) for action in plan.actions]
    return {"incident": incident, **facts, "actions": actions, "refusal": plan.refusal}


def _priced(decision: Rollback, run: RunState) -> Iterator[str]:
    """What it changes and costs, what is to be expected, and what nobody will be able to confirm."""
    if decision.changes:
        yield f"changes: {'; '.join(decision.changes)}"
    cost = price(decision, run)
    yield f"{cost.lost_steps} steps are lost{_hours(cost.lost_gpu_hours)}; nothing is deleted"
    if cost.steps_to_next_save is not None:
        yield f"waiting for one more save would take {cost.steps_to_next_save} steps{_hours(cost.waiting_gpu_hours)}"
    for coming in coming_saves(decision, run):
        yield str(coming)
    for sentence in unconfirmed(decision, run):
        yield f"can't be confirmed: {sentence}"


def _hours(gpu_hours: float | None) -> str:
    return "" if gpu_hours is None else f" ({gpu_hours:.3g} GPU-hours)"


def _lines(actions: tuple[Action, ...]) -> list[str]:
    return [describe(action) for action in actions if not isinstance(action, VerifyCheckpoint)]


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    if not sys.stdin.isatty():
        typer.echo("stdin is not a terminal; pass --yes to confirm", err=True)
        return False
    return typer.confirm(question)
