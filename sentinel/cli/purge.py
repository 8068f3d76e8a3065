"""`sentinel purge`: deletes a closed incident's quarantine."""

from __future__ import annotations

import typer

from sentinel.act.perform import Ledger
from sentinel.adapters.checkpoints import QUARANTINE, Claim
from sentinel.adapters.checkpoints.quarantine import purge as delete
from sentinel.adapters.checkpoints.quarantine import size_of
from sentinel.adapters.lock import RunLock
from sentinel.cli.incident import incident_named
from sentinel.cli.shared import RUNS, ConfigDir, IncidentName, Run, Yes, confirmed, to_stderr
from sentinel.daemon.run_files import clock, find_config, incident_log_of, state_dir_of
from sentinel.vocabulary.errors import ConfigError


def purge(name: IncidentName, run: Run = None, config_dir: ConfigDir = RUNS, yes: Yes = False) -> int:
    """The only deletion that sentinel does, and only by hand."""
    config = find_config(run, config_dir)
    state_dir, log = state_dir_of(config), incident_log_of(config)
    incident = incident_named(log.read(), name)
    if (claimed := Claim(config.run.checkpoints, state_dir).problem()) is not None:
        raise ConfigError(f"nothing is deleted from here: {claimed}")
    if incident.status != "closed":
        raise ConfigError(f"{incident.id} is {incident.status}: only a closed incident's quarantine is deleted")
    parents = [config.run.checkpoints, *([config.run.tensorboard.parent] if config.run.tensorboard else [])]
    folders = [parent / QUARANTINE / incident.id for parent in parents]
    files, size = (sum(numbers) for numbers in zip(*(size_of(folder) for folder in folders), strict=True))
    if not files:
        typer.echo(f"the quarantine of {incident.id} is empty")
        return 0
    names = [str(folder) for folder in folders]
    typer.echo(f"{files} files, {size / 1e9:.3g} GB in {', '.join(names)}")
    question = f"They can't be brought back after this. Type {incident.id} to delete them"
    if not yes and not confirmed(question, typed=incident.id):
        return 1
    with RunLock(state_dir):
        Ledger(log.append, clock, to_stderr).record({"event": "purged", "incident": incident.id, "folders": names})
        for folder in folders:
            delete(folder)
    typer.echo(f"deleted the quarantine of {incident.id}; its rollbacks can't be undone any more")
    return 0
