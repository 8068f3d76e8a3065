"""`status` and `incidents`: what is known, for a person or as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import typer

from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.daemon.watched_run import NOT_WELL
from sentinel.judge.events import Event
from sentinel.plan.incident import Incident
from sentinel.plan.incident_fold import fold
from sentinel.plan.liveness import life_of
from sentinel.plan.price import lost_so_far
from sentinel.plan.proof_value import Proof
from sentinel.plan.sentences import sentence
from sentinel.plan.witnesses import Life
from sentinel.vocabulary.numbers import dump_json

__all__ = ["incident_json", "incidents", "shadows", "status"]


_EVENTS_TOLD = 5
"""The last ones that `status` tells; `replay` tells all."""


def status(config: Config, *, as_json: bool) -> int:
    """Where the run stands; 1 when it is not well."""
    near = wiring.neighbours_of(config)
    look = wiring.observer_of(config, near).look(wiring.clock())
    last = look.series.last
    spent = sum(len(i.rollbacks) for i in look.run.incidents)
    budget = {
        "rollbacks_left": max(0, config.policy.rollback_budget - spent),
        "lost_steps_left": config.policy.lost_steps_budget - lost_so_far(look.run.incidents),
    }
    job = life_of(look.run)
    answer = {
        "run": config.run.name,
        "mode": config.policy.mode,
        "verdict": str(look.verdict.kind),
        "reason": look.verdict.reason,
        "job": {"state": str(job.life), "reason": job.sentence},
        "attempt": look.history.latest.number if look.history.latest else None,
        "global_step": last.global_step if last else None,
        "loss": last.loss if last else None,
        "loss_ratio": last.loss_ratio if last else None,
        "onset_range": look.verdict.onset_range,
        "led_by": look.verdict.led_by,
        "events": [_event(event) for event in look.series.events[-_EVENTS_TOLD:]],
        "incidents": [incident_json(i) for i in look.run.incidents],
        "budget": budget,
        "unreadable_lines": near.source.unreadable,
        "latest": look.run.latest_tag,
        "trackers_problem": look.run.disagreement,
    }
    if as_json:
        typer.echo(dump_json(answer))
    else:
        at = f" at step {last.global_step}, loss {last.loss:.4f}" if last else ""
        attempt = answer["attempt"] or "none yet"
        typer.echo(f"{config.run.name}: {look.verdict.kind}{at} (attempt {attempt}, mode {answer['mode']})")
        typer.echo(f"  {look.verdict.reason}")
        if job.life is not Life.UNKNOWN:
            typer.echo(f"  job {job.life}: {job.sentence}")
        elif job.sentence != look.verdict.reason:
            typer.echo(f"  {job.sentence}")
        if look.run.open_incident:
            typer.echo(f"  {look.run.open_incident.id} is {look.run.open_incident.status}")
        if look.run.disagreement is not None:
            typer.echo(f"  checkpoints: {look.run.disagreement}; a rollback or a restart rewrites the trackers")
        typer.echo(f"  rollbacks left: {budget['rollbacks_left']}")
    return int(look.verdict.kind in NOT_WELL)


def _event(event: Event) -> dict[str, Any]:
    return {
        "kind": str(event.kind),
        "onset_step": event.onset_step,
        "end_step": event.end_step,
        "reason": event.reason,
    }


def incidents(config: Config, *, as_json: bool) -> int:
    """What happened to the run, and what was tried."""
    found = fold(wiring.neighbours_of(config).incident_log.read())
    if as_json:
        typer.echo(dump_json([incident_json(i) for i in found]))
        return 0
    if not found:
        typer.echo(f"{config.run.name} has had no incident")
    for incident in found:
        onset = f"onset {incident.onset_range[0]}-{incident.onset_range[1]}" if incident.onset_range else "by hand"
        onset = f"{incident.ignored} did not take effect" if incident.ignored else onset
        typer.echo(f"{incident.id}: {incident.outcome or incident.status}; {onset}, attempt {incident.attempt}")
        typer.echo(f"  {incident.reason}")
        for wait in incident.waits:
            typer.echo(f"  {wait.rung}: watched from step {wait.from_step} to {wait.until_step} whether it heals")
            typer.echo(f"    hypothesis: {wait.hypothesis}")
            if wait.failed:
                typer.echo(f"    did not help: {wait.failed}")
        for skip in incident.skips:
            typer.echo(f"  {skip.rung}: skipped, it can't be carried out: {skip.reason}")
            typer.echo(f"    hypothesis: {skip.hypothesis}")
        for rollback in incident.rollbacks:
            whence = rollback.target_tag or "scratch"
            typer.echo(
                f"  {rollback.id}: {rollback.rung}, from {whence} ({'; '.join(rollback.changes) or 'no change'})"
            )
            typer.echo(f"    hypothesis: {rollback.hypothesis}")
            if rollback.result is not None:
                typer.echo(f"    {rollback.result}")
            elif rollback.proof is Proof.NOT_VERIFIED:
                typer.echo(f"    not verified: {', '.join(rollback.doubts)}")
        if incident.note:
            typer.echo(f"  {incident.outcome or 'stopped'}: {incident.note}")
    return 0


def shadows(config: Config, *, as_json: bool) -> int:
    """What sentinel would have done, had it been allowed to act: one entry for each time."""
    events = wiring.neighbours_of(config).incident_log.read()
    told = [event for event in events if event["event"] == "shadow"]
    opened = {event["incident"]: event for event in events if event["event"] == "opened"}
    if as_json:
        keys = ("incident", "rollback", "rung", "hypothesis", "target", "changes", "lost_steps", "refusal")
        rows = [{key: event.get(key) for key in keys} | {"time_unix_s": event["time_unix_s"]} for event in told]
        typer.echo(dump_json(rows))
        return 0
    acted = sum(event.get("refusal") is None for event in told)
    typer.echo(f"{config.run.name}: I would have acted {acted} time{'s' * (acted != 1)}")
    for event in told:
        when = datetime.fromtimestamp(float(event["time_unix_s"])).astimezone()
        typer.echo(f"  {when:%Y-%m-%d %H:%M:%S}  {event['incident']}: {opened[event['incident']]['reason']}")
        typer.echo(f"    {sentence(event)}")
        if event.get("lost_steps") is not None:
            typer.echo(f"    it would have thrown away {event['lost_steps']} steps, to test: {event['hypothesis']}")
    return 0


def incident_json(incident: Incident) -> dict[str, Any]:
    """An incident as scripts read it."""
    return {
        "incident": incident.id,
        "status": incident.status,
        "outcome": incident.outcome,
        "attempt": incident.attempt,
        "onset_range": incident.onset_range,
        "alarm_step": incident.alarm_step,
        "reason": incident.reason,
        "ignored": incident.ignored,
        "led_by": incident.led_by,
        "note": incident.note,
        "waits": [
            {
                "rung": w.rung,
                "hypothesis": w.hypothesis,
                "from_step": w.from_step,
                "until_step": w.until_step,
                "failed": w.failed,
            }
            for w in incident.waits
        ],
        "skips": [{"rung": s.rung, "hypothesis": s.hypothesis, "reason": s.reason} for s in incident.skips],
        "rollbacks": [
            {
                "rollback": r.id,
                "rung": r.rung,
                "hypothesis": r.hypothesis,
                "target": {"tag": r.target_tag, "global_step": r.target_step},
                "changes": r.changes,
                "attempt": r.attempt,
                "proved": r.proved,
                "proof": r.proof,
                "doubts": r.doubts,
                "failed": r.failed,
            }
            for r in incident.rollbacks
        ],
    }
