"""Checks of the account, the machine and the launcher: whether the job can be stopped and started from here."""

from __future__ import annotations

import getpass
import os
import shutil
import time
from collections.abc import Iterator

from sentinel.adapters.journal import last_beginning
from sentinel.config import Config
from sentinel.daemon.doctor.finding import Finding
from sentinel.daemon.permission import faults_of
from sentinel.daemon.run_files import state_dir_of


def account_and_machine(config: Config) -> Iterator[Finding]:
    """The same check as in `watch`, `rollback` and `undo`."""
    faults = faults_of(config)
    for fault in faults:
        yield Finding("bad", "account and machine", fault)
    if not faults:
        yield Finding("ok", "account and machine", f"the run's files and jobs belong to {getpass.getuser()}")


def launcher(config: Config) -> Iterator[Finding]:
    """Whether the job can be started again."""
    settings = config.launcher
    if settings.kind == "slurm":
        yield from _slurm(config)
    elif settings.kind == "elsewhere":
        yield Finding("note", "launcher", "kind is elsewhere: sentinel watches the job and does not act on it")
    elif not settings.command:
        yield Finding("bad", "launcher", "[launcher] command is empty: sentinel can stop the job, but not start it")
    elif shutil.which(settings.command[0], path=os.environ.get("PATH")) is None:
        yield Finding("bad", "launcher", f"[launcher] command: program {settings.command[0]!r} not found")
    elif not settings.working_directory.is_dir():
        yield Finding("bad", "launcher", f"[launcher] working_directory: {settings.working_directory} does not exist")
    else:
        yield Finding("ok", "launcher", f"{settings.command[0]} can be run in {settings.working_directory}")
    if shutil.which("py-spy") is None:
        yield Finding("note", "py-spy", "not installed: a job that hangs is restarted without a record of its stacks")


def _slurm(config: Config) -> Iterator[Finding]:
    from sentinel.adapters.slurm import SlurmClient

    client = SlurmClient(user=config.launcher.user, timeout_s=config.launcher.slurm_timeout_s)
    began = time.monotonic()
    jobs = client.jobs()
    yield Finding("ok", "Slurm", f"answers within {time.monotonic() - began:.2f} s; {len(jobs)} jobs of this user")
    newest = last_beginning(state_dir_of(config))
    known = {newest.started.job_id.partition("_")[0]} if newest is not None and newest.started.job_id else set()
    ours = [j for j in jobs if not j.ended and (j.group in known or j.name == config.launcher.job_name)]
    if not ours:
        yield Finding("note", "Slurm", "no job of this run is in the queue: submission was not tried")
        return
    job = ours[-1]
    script, recorded = client.script(job.group), client.recorded(job.group)
    lines = len(script.splitlines())
    yield Finding("ok", "job script", f"Slurm returns the script of job {job.group}: {lines} lines")
    scratch = state_dir_of(config) / f".doctor.{os.getpid()}.sh"
    scratch.write_text(script, encoding="utf-8")
    try:
        client.test(
            [*recorded.properties.arguments(), "--comment=sentinel", *config.launcher.sbatch_arguments],
            scratch,
            recorded.script_arguments,
        )
    finally:
        scratch.unlink()
    yield Finding("ok", "submission", "sbatch --test-only accepts the job with a comment of sentinel's")
