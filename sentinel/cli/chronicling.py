"""`incident` and `chronicle`: the story, for a person at the terminal and for those who come later."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from sentinel.act.source import read_all
from sentinel.cli.telling import incident_json
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.judge.history import History
from sentinel.plan.incident import Incident
from sentinel.plan.incident_fold import fold
from sentinel.plan.sentences import story
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["chronicle", "incident", "named"]


def incident(config: Config, name: str, *, as_json: bool) -> int:
    """One incident, event by event."""
    events = wiring.neighbours_of(config).incident_log.read()
    found = named(fold(events), name)
    told = story(events, found.id)
    if as_json:
        lines = [{"time_unix_s": line.time_unix_s, "sentence": line.sentence} for line in told]
        typer.echo(dump_json(incident_json(found) | {"story": lines}))
        return 0
    typer.echo(f"{found.id}: {found.outcome or found.status}")
    for line in told:
        typer.echo(f"  {datetime.fromtimestamp(line.time_unix_s).astimezone():%Y-%m-%d %H:%M:%S}  {line.sentence}")
    return 0


def named(incidents: tuple[Incident, ...], name: str) -> Incident:
    """The incident of that name. ConfigError names those that there are."""
    found = next((i for i in incidents if i.id == name), None)
    if found is None:
        raise ConfigError(
            f"there is no {name!r}; there is {', '.join(i.id for i in incidents) or 'no incident at all'}"
        )
    return found


def chronicle(config: Config, output: Path) -> int:
    """Writes the whole run's chronicle."""
    from sentinel.reports.chronicle.page import write_chronicle  # matplotlib takes a while to import

    near = wiring.neighbours_of(config)
    history = History()
    for record in read_all(near.source):
        history.push(record)
    events: list[dict[str, Any]] = [dict(event) for event in near.incident_log.read()]
    typer.echo(f"wrote {write_chronicle(config.run.name, history, events, output)}")
    return 0
