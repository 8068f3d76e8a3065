"""`sentinel purge`: deletes a closed incident's quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentinel.act.perform import Ledger
from sentinel.adapters.checkpoints import QUARANTINE, Claim
from sentinel.adapters.checkpoints.quarantine import foreign_entries, size_of
from sentinel.adapters.checkpoints.quarantine import purge as delete
from sentinel.adapters.lock import RunLock
from sentinel.adapters.tensorboard import ORIGINALS, changed_originals
from sentinel.adapters.tensorboard import foreign_entries as foreign_among_originals
from sentinel.cli.incident import incident_named
from sentinel.cli.shared import RUNS, ConfigDir, IncidentName, Run, Yes, confirmed, echo, to_stderr
from sentinel.config.run_files import clock, find_config, incident_log_of, state_dir_of
from sentinel.durable import os_errors_named
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_outcomes import Purged
from sentinel.vocabulary.errors import ConfigError, QuarantineError
from sentinel.vocabulary.names import shown

_NAMED = 5  # entries that a refusal names


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
    _check(folders, incident)
    files, size = (sum(numbers) for numbers in zip(*(size_of(folder) for folder in folders), strict=True))
    if not files:
        echo(f"the quarantine of {incident.id} is empty")
        return 0
    names = [str(folder) for folder in folders]
    echo(f"{files} files, {size / 1e9:.3g} GB in {', '.join(names)}")
    question = f"They can't be brought back after this. Type {incident.id} to delete them"
    if not yes and not confirmed(question, typed=incident.id):
        return 1
    with RunLock(state_dir):
        _check(folders, incident)  # a person may have answered late
        Ledger(log.append, clock, to_stderr).record(Purged(incident=incident.id, folders=tuple(names)))
        for folder in folders:
            delete(folder)
    echo(f"deleted the quarantine of {incident.id}; its rollbacks can't be undone any more")
    return 0


def _check(folders: Sequence[Path], incident: Incident) -> None:
    """QuarantineError where something in the folders was not moved there by the incident's rollbacks, or is written to
    by another process since."""
    for folder in dict.fromkeys(folders):
        with os_errors_named(folder):
            foreign = list(foreign_entries(folder, incident.rollbacks, ORIGINALS))
            for originals in folder.glob(f"*/*{ORIGINALS}"):
                foreign += foreign_among_originals(originals)
            for path, why in (found for room in folder.glob("*/") for found in changed_originals(room)):
                raise QuarantineError(
                    f"{path} is not deleted: {why}; end that process and move the file elsewhere, then purge again"
                )
        if foreign:
            names = ", ".join(shown(str(path.relative_to(folder))) for path in foreign[:_NAMED])
            names += f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
            raise QuarantineError(
                f"nothing is deleted: {folder} holds what no rollback of {incident.id} moved there: {names}; "
                "move that elsewhere, then purge again"
            )
