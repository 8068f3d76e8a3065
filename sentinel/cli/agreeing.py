"""`approve` and `purge`: what only a person can say."""

from __future__ import annotations

import getpass
import socket
import sys
from pathlib import Path

import typer

from sentinel.act.ledger import Ledger
from sentinel.adapters.approvals import Approvals
from sentinel.adapters.checkpoints import QUARANTINE, Claim
from sentinel.adapters.lock import RunLock
from sentinel.adapters.purge import purge as delete
from sentinel.adapters.purge import size_of
from sentinel.cli.chronicling import named
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.plan.incident import Approval, Incident
from sentinel.plan.incident_fold import fold
from sentinel.plan.sentences import sentence
from sentinel.vocabulary.errors import ConfigError

__all__ = ["approve", "purge"]


def approve(config: Config, name: str, *, yes: bool) -> int:
    """Says yes to what watch has proposed; 1 when there is nothing to say yes to."""
    events = wiring.neighbours_of(config).incident_log.read()
    incident = named(fold(events), name)
    proposal = incident.proposal
    if proposal is None or incident.status != "open":
        typer.echo(f"{incident.id} waits for no approval: it is {incident.outcome or incident.status}")
        return 1
    if proposal.expired:
        typer.echo(f"the proposal for {incident.id} has expired; `sentinel rollback` does it by hand")
        return 1
    event = next(e for e in reversed(events) if e["event"] == "proposed" and e["incident"] == incident.id)
    typer.echo(
        f"{incident.id}: {sentence(event)}\n  hypothesis: {event['hypothesis']}\n  lost: {event['lost_steps']} steps"
    )
    if not yes and not _typed("Do this? Type yes", "yes"):
        return 1
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    approval = Approval(digest=proposal.digest, by=by, time_unix_s=wiring.clock())
    Approvals(wiring.state_dir_of(config) / "approvals").write(incident.id, approval)
    typer.echo("approved; watch verifies the target once more, and asks again if the plan has changed")
    return 0


def purge(config: Config, name: str, *, yes: bool) -> int:
    """Deletes what an incident's rollbacks moved aside. There is no undo after it."""
    near = wiring.neighbours_of(config)
    incident = named(fold(near.incident_log.read()), name)
    if (claimed := Claim(config.run.checkpoints, near.state_dir).problem()) is not None:
        raise ConfigError(f"nothing is deleted from here: {claimed}")
    if incident.status != "closed":
        raise ConfigError(f"{incident.id} is {incident.status}: only a closed incident's quarantine is deleted")
    rooms = [folder / QUARANTINE / incident.id for folder in _keepers(config)]
    files, size = (sum(numbers) for numbers in zip(*(size_of(room) for room in rooms), strict=True))
    if not files:
        typer.echo(f"the quarantine of {incident.id} is empty")
        return 0
    typer.echo(f"{files} files, {size / 1e9:.3g} GB in {', '.join(str(room) for room in rooms)}")
    if not yes and not _typed(f"They can't be brought back after this. Type {incident.id} to delete them", incident.id):
        return 1
    with RunLock(near.state_dir):
        _delete(
            incident, rooms, Ledger(near.incident_log.append, wiring.clock, lambda line: typer.echo(line, err=True))
        )
    typer.echo(f"the quarantine of {incident.id} is deleted; it can't be undone any more")
    return 0


def _delete(incident: Incident, rooms: list[Path], ledger: Ledger) -> None:
    ledger.record({"event": "purged", "incident": incident.id, "folders": [str(room) for room in rooms]})
    for room in rooms:
        delete(room)


def _keepers(config: Config) -> list[Path]:
    """Folders that hold a quarantine."""
    run = config.run
    return [run.checkpoints, *([run.tensorboard.parent] if run.tensorboard else [])]


def _typed(question: str, wanted: str) -> bool:
    if not sys.stdin.isatty():
        typer.echo("stdin is not a terminal; pass --yes to confirm", err=True)
        return False
    return str(typer.prompt(question, default="", show_default=False)).strip() == wanted
