"""Builds the launcher of a run, or of one of its probes, from the run's configuration."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from sentinel.act.neighbours import Launcher
from sentinel.act.wandb_branches import WandbBranches
from sentinel.adapters.commands import STATES, CommandSettings, CommandsLauncher
from sentinel.adapters.elsewhere import ElsewhereLauncher
from sentinel.adapters.local import LocalJobs, LocalLauncher
from sentinel.adapters.slurm import Queues, SlurmClient, SlurmLauncher, SlurmSettings
from sentinel.config import Config


def wandb_of(config: Config, state_dir: Path) -> WandbBranches | None:
    """None where nothing is to be done in W&B at a rollback."""
    if config.wandb.after_rollback == "off":
        return None
    return WandbBranches(state_dir / "wandb-branches.json", config.run.name, config.wandb)


def launcher_of(
    config: Config,
    state_dir: Path,
    log: Path,
    queues: Queues | None = None,
    *,
    environment: Callable[[], dict[str, str]] | None = None,
) -> Launcher:
    """`environment`: what its jobs get, in place of what W&B's branches need."""
    launcher = config.launcher
    if environment is None:
        branches = wandb_of(config, state_dir)
        environment = branches.environment if branches is not None else dict[str, str]
    if launcher.kind == "elsewhere":
        return ElsewhereLauncher()
    if launcher.kind == "local":
        return LocalLauncher(
            LocalJobs(state_dir, launcher.command, config.source.path if config.source.kind == "log" else None),
            command=launcher.command,
            working_directory=launcher.working_directory,
            log=log,
            stop_grace_s=launcher.stop_grace_s,
            environment=environment,
        )
    # two projects of one user may have runs of one name: their state folders differ
    digest = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:8]
    if launcher.kind == "commands":
        commands = config.commands
        return CommandsLauncher(
            CommandSettings(
                prefix=f"sentinel-{digest}",
                state_dir=state_dir,
                start=commands.start,
                stop=commands.stop,
                list=commands.list,
                log=commands.log,
                list_pattern=commands.list_pattern,
                list_ignore=commands.list_ignore,
                states=STATES | {word.lower(): meaning for word, meaning in commands.states.items()},
                job_name=launcher.job_name,
                working_directory=launcher.working_directory,
                timeout_s=commands.timeout_s,
                stop_grace_s=launcher.stop_grace_s,
                query_interval_s=launcher.query_interval_s,
                environment=environment,
            )
        )
    settings = SlurmSettings(
        run=f"{config.run.name}~{digest}",
        state_dir=state_dir,
        job_name=launcher.job_name,
        script=launcher.script,
        working_directory=launcher.working_directory.resolve(),
        changes_in_script=launcher.changes_in_script,
        scheduler_override=launcher.scheduler_override,
        sbatch_arguments=launcher.sbatch_arguments,
        environment=environment,
        own_job=os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID"),
        exclude_after_failures=launcher.exclude_after_failures,
        query_interval_s=launcher.query_interval_s,
        stop_grace_s=launcher.stop_grace_s,
    )
    client = SlurmClient(user=launcher.user, timeout_s=launcher.slurm_timeout_s)
    return SlurmLauncher(client, settings, queue=queues.of(client) if queues else None)
