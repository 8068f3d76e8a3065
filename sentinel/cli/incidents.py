"""`sentinel incidents`: the run's incidents with what was tried, or what mode act would have done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from sentinel.cli.incident import incident_json
from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, echo, local_time, print_json
from sentinel.config import Config
from sentinel.config.run_files import find_config, incident_log_of
from sentinel.plan.alerts.sentences import sentence
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident, Proof
from sentinel.plan.incident.log_events import Opened, Shadow, ShadowRefused

_SHADOW_KEYS = ("incident", "rollback", "rung", "hypothesis", "target", "changes", "lost_steps", "refusal")


def incidents(
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    shadow: Annotated[bool, typer.Option("--shadow", help="List what sentinel would have done in mode act.")] = False,
    as_json: Json = False,
) -> int:
    config = find_config(run, config_dir)
    if shadow:
        return _shadows(config, as_json=as_json)
    found = fold(incident_log_of(config).read())
    if as_json:
        print_json([incident_json(i) for i in found])
        return 0
    if not found:
        echo(f"{config.run.name} has had no incident")
    for incident in found:
        for line in _lines(incident):
            echo(line)
    return 0


def _lines(incident: Incident) -> Iterator[str]:
    onset = f"onset {incident.onset_range[0]}-{incident.onset_range[1]}" if incident.onset_range else "by hand"
    onset = f"{incident.ignored} did not take effect" if incident.ignored else onset
    yield f"{incident.id}: {incident.outcome or incident.status}; {onset}, attempt {incident.attempt}"
    yield f"  {incident.reason}"
    for wait in incident.waits:
        yield f"  {wait.rung}: waits from step {wait.from_step} to {wait.until_step} for the loss to recover"
        yield f"    hypothesis: {wait.hypothesis}"
        if wait.failed:
            yield f"    did not help: {wait.failed}"
    for skip in incident.skips:
        yield f"  {skip.rung}: skipped, it can't be carried out: {skip.reason}"
        yield f"    hypothesis: {skip.hypothesis}"
    if incident.bisect is not None:
        yield f"  bisect: {incident.bisect.over or 'goes on'}"
    for rollback in incident.rollbacks:
        target = rollback.target_tag or "scratch"
        yield f"  {rollback.id}: {rollback.rung}, from {target} ({'; '.join(rollback.changes) or 'no change'})"
        yield f"    hypothesis: {rollback.hypothesis}"
        if rollback.result is not None:
            yield f"    {rollback.result}"
        elif rollback.proof is Proof.NOT_VERIFIED:
            yield f"    not verified: {', '.join(rollback.doubts)}"
    if incident.note:
        yield f"  {incident.outcome or 'stopped'}: {incident.note}"


def _shadows(config: Config, *, as_json: bool) -> int:
    events = incident_log_of(config).read()
    shadows = [event for event in events if isinstance(event, Shadow | ShadowRefused)]
    if as_json:
        keys, lines = (*_SHADOW_KEYS, "time_unix_s"), [event.to_json() for event in shadows]
        print_json([{key: line.get(key) for key in keys} for line in lines])
        return 0
    reasons = {event.incident: event.reason for event in events if isinstance(event, Opened)}
    acted = sum(event.refusal is None for event in shadows)
    echo(f"{config.run.name}: sentinel would have acted {acted} time{'s' * (acted != 1)}")
    for event in shadows:
        echo(f"  {local_time(event.time_unix_s)}  {event.incident}: {reasons[event.incident]}")
        echo(f"    {sentence(event)}")
        if isinstance(event, Shadow):
            echo(f"    it would have lost {event.lost_steps} steps; hypothesis: {event.hypothesis}")
    return 0
