"""`undo`: takes back what rollbacks did, and says what other incidents hold and how the job is started again."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from sentinel.act.undo import quarantine_of, take_back, undo_incident, undoable
from sentinel.adapters.lock import RunLock
from sentinel.cli.rolling import agreed
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.plan.incident import Incident
from sentinel.vocabulary.errors import ConfigError, SentinelError

__all__ = ["undo"]


def undo(config: Config, incident: str | None, *, every: bool, yes: bool) -> int:
    """Takes an incident's rollbacks back, the last one first; `every`: of all incidents, the newest first."""
    if every and incident is not None:
        raise ConfigError(f"pass either {incident} or --all, not both")
    wiring.insist_on_ground(config)
    lock = RunLock(wiring.state_dir_of(config))
    own = wiring.own_of(config, lock)
    parts = wiring.assemble(config, config.policy, say=lambda line: typer.echo(line, err=True), own=own)
    incidents = parts.observer.look(wiring.clock()).run.incidents
    chosen = _chosen(incidents, incident, every=every)
    for one in chosen:
        typer.echo(f"undo {one.id}: {', '.join(r.id for r in reversed(one.rollbacks))}{_brings(one, parts)}")
    for line in _left(incidents, chosen, parts):
        typer.echo(line)
    typer.echo("the job is stopped first, and is not started again")
    if not yes and not agreed("Do this?"):
        return 1
    with lock, wiring.delivering(parts.paging):
        for one in chosen:
            again = undo_incident(parts.observer.look(wiring.clock()).run.incidents, one.id)
            take_back(again, parts.near, parts.observer, parts.ledger)
    incidents = parts.observer.look(wiring.clock()).run.incidents
    typer.echo(f"{', '.join(one.id for one in chosen)}: undone")
    for line in (*_left(incidents, (), parts), *_start(parts)):
        typer.echo(line)
    return 0


def _chosen(incidents: tuple[Incident, ...], wanted: str | None, *, every: bool) -> tuple[Incident, ...]:
    last = undo_incident(incidents, wanted)
    return undoable(incidents) if every else (last,)


def _brings(incident: Incident, parts: wiring.Parts) -> str:
    tags = quarantine_of(incident, parts.near.checkpoints)
    return f"; brings back {', '.join(tags)}" if tags else ""


def _left(incidents: tuple[Incident, ...], chosen: tuple[Incident, ...], parts: wiring.Parts) -> Iterator[str]:
    """What stays in the quarantine of incidents that are not undone."""
    for other in undoable(incidents):
        tags = quarantine_of(other, parts.near.checkpoints)
        if other.id not in [one.id for one in chosen] and tags:
            yield (
                f"{other.id} holds {', '.join(tags)}, which stay in its quarantine; "
                f"`sentinel undo {other.id}` brings them back, `sentinel undo --all` undoes every incident"
            )


def _start(parts: wiring.Parts) -> Iterator[str]:
    """How a person starts the job again."""
    try:
        commands = parts.near.launcher.start_commands(parts.observer.started)
    except (SentinelError, OSError) as error:
        yield f"the job is not started; its start command is not known: {error}"
        return
    if not commands:
        yield "the job is not started; its start command is not known: [launcher] command is empty"
        return
    yield "the job is not started; this starts it again:"
    yield from (f"  {line}" for line in commands)
