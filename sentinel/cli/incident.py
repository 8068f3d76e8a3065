"""`sentinel incident`: one incident, event by event."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from sentinel.cli.explain import write_bundle
from sentinel.cli.shared import RUNS, ConfigDir, IncidentName, Json, Run, echo, fields_of, local_time, print_json
from sentinel.config.run_files import find_config, incident_log_of
from sentinel.plan.alerts.sentences import story
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.vocabulary.errors import ConfigError


def incident(
    name: IncidentName,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Write all that `sentinel explain` needs of it to one file, without secrets."),
    ] = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    config = find_config(run, config_dir)
    events = incident_log_of(config).read()
    found = incident_named(events, name)
    if bundle is not None:
        turns = write_bundle(bundle, name, config, events)
        if as_json:
            print_json({"bundle": str(bundle), "incident": name, "turns": turns})
        else:
            echo(f"{bundle}: {name} with {turns} kept turns; `sentinel explain {bundle}` reads it on any machine")
        return 0
    lines = story(events, found.id)
    if as_json:
        rows = [{"time_unix_s": line.time_unix_s, "sentence": line.sentence} for line in lines]
        print_json(incident_json(found) | {"story": rows})
        return 0
    echo(f"{found.id}: {found.outcome or found.status}")
    for line in lines:
        echo(f"  {local_time(line.time_unix_s)}  {line.sentence}")
    return 0


def incident_named(events: Iterable[IncidentEvent], name: str) -> Incident:
    """The incident of that name in the log. ConfigError lists those that exist."""
    incidents = fold(events)
    found = next((i for i in incidents if i.id == name), None)
    if found is None:
        raise ConfigError(f"no incident {name!r}; incidents.jsonl has {', '.join(i.id for i in incidents) or 'none'}")
    return found


def incident_json(incident: Incident) -> dict[str, Any]:
    return {
        "incident": incident.id,
        **fields_of(incident, "status", "outcome", "attempt", "onset_range", "alarm_step", "reason"),
        **fields_of(incident, "ignored", "note"),
        "led_by": incident.leading.led_by,
        "moved_first": None if incident.moved_first is None else incident.moved_first.to_json(),
        "waits": [fields_of(w, "rung", "hypothesis", "from_step", "until_step", "failed") for w in incident.waits],
        "skips": [fields_of(s, "rung", "hypothesis", "reason") for s in incident.skips],
        "bisect": None if incident.bisect is None else fields_of(incident.bisect, "over", "gpu_hours"),
        "rollbacks": [
            {
                "rollback": r.id,
                **fields_of(r, "rung", "hypothesis"),
                "target": {"tag": r.target_tag, "global_step": r.target_step},
                **fields_of(r, "changes", "attempt", "proved", "proof", "doubts", "failed"),
            }
            for r in incident.rollbacks
        ],
    }
