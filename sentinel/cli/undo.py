"""`sentinel undo`: reverts rollbacks, and says what other quarantines hold and how the job is started again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Annotated

import typer

from sentinel.act.perform import wait_until_quiet
from sentinel.act.undo import quarantine_of, take_back, undo_incident, undoable
from sentinel.act.undo_preview import preview
from sentinel.cli.shared import RUNS, ConfigDir, Run, Yes, confirmed, echo, to_stderr
from sentinel.config.run_files import clock, find_config
from sentinel.daemon.paging import delivering
from sentinel.daemon.wiring import Parts, assemble_to_act
from sentinel.plan.incident.incident import Incident
from sentinel.vocabulary.errors import ConfigError, SentinelError


def undo(
    incident: Annotated[str | None, typer.Argument(help="The incident; default: the last one.")] = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    every: Annotated[bool, typer.Option("--all", help="Undo every incident that can be undone, newest first.")] = False,
    without_missing: Annotated[
        bool, typer.Option("--without-missing", help="Undo the rest where checkpoints that were moved aside are gone.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be moved, and where to.")] = False,
    yes: Yes = False,
) -> int:
    """The job is stopped first, and not started again."""
    if every and incident is not None:
        raise ConfigError(f"pass either {incident} or --all, not both")
    config = find_config(run, config_dir)
    parts, lock = assemble_to_act(config, to_stderr)
    incidents = parts.observer.look(clock()).facts.incidents
    last = undo_incident(incidents, incident)
    chosen = [one.id for one in undoable(incidents)] if every else [last.id]
    for one in (one for name in chosen for one in incidents if one.id == name):
        tags = quarantine_of(one, parts.near.checkpoints)
        restored = f"; brings back {', '.join(tags)}" if tags else ""
        what = ", ".join(r.id for r in reversed(one.rollbacks)) or "its probes, which are stopped"
        echo(f"undo {one.id}: {what}{restored}")
    for line in _remaining(incidents, chosen, parts):
        echo(line)
    echo("the job is stopped first, and is not started again")
    if dry_run:
        each = [one for name in chosen for one in incidents if one.id == name]
        for line in preview(each, parts.near, without_missing=without_missing):
            echo(f"  {line}")
        echo("each checkpoint takes its manifest and its pin along")
        return 0
    if not yes and not confirmed("Do this?"):
        return 1
    with lock, delivering(parts.paging):
        for name in chosen:
            again = undo_incident(parts.observer.look(clock()).facts.incidents, name)
            wait = partial(wait_until_quiet, parts.observer, None, to_stderr)
            take_back(again, parts.near, parts.observer, parts.ledger, wait, without_missing=without_missing)
    incidents = parts.observer.look(clock()).facts.incidents
    echo(f"{', '.join(chosen)}: undone")
    for line in (*_remaining(incidents, (), parts), *_start_commands(parts)):
        echo(line)
    return 0


def _remaining(incidents: tuple[Incident, ...], chosen: Collection[str], parts: Parts) -> Iterator[str]:
    """What stays in the quarantine of incidents that are not undone."""
    for other in undoable(incidents):
        tags = quarantine_of(other, parts.near.checkpoints)
        if other.id not in chosen and tags:
            yield (
                f"{other.id} holds {', '.join(tags)}, which stay in its quarantine; "
                f"`sentinel undo {other.id}` brings them back, `sentinel undo --all` undoes every incident"
            )


def _start_commands(parts: Parts) -> Iterator[str]:
    try:
        commands = parts.near.launcher.start_commands(parts.observer.started)
        unknown = None if commands else "[launcher] command is empty"
    except (SentinelError, OSError) as error:
        commands, unknown = (), str(error)
    if unknown is not None:
        yield f"the job is not started; its start command is not known: {unknown}"
    else:
        yield "the job is not started; this starts it again:"
        yield from (f"  {line}" for line in commands)
