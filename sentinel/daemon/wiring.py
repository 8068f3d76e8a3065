"""Builds the adapters of one run from its configuration."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.act import preconditions
from sentinel.act.file_activity import Signs
from sentinel.act.ledger import Ledger, Say
from sentinel.act.neighbours import Launcher, Neighbours
from sentinel.act.observe import Observer
from sentinel.act.perform import Performer
from sentinel.act.references import References
from sentinel.act.source import Source
from sentinel.adapters.approvals import Approvals
from sentinel.adapters.checkpoints import MANIFESTS, Checkpoints, Claim
from sentinel.adapters.elsewhere import ElsewhereLauncher
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals, last_beginning
from sentinel.adapters.local import LocalJobs, LocalLauncher
from sentinel.adapters.lock import RunLock
from sentinel.adapters.overrides_file import OverridesFile
from sentinel.adapters.paging import settings
from sentinel.adapters.paging.channels import channel_of
from sentinel.adapters.paging.delivery import Delivery
from sentinel.adapters.paging.outbox import Outbox
from sentinel.adapters.slurm import Queues, SlurmClient, SlurmLauncher, SlurmSettings
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.config import Config
from sentinel.daemon.paging import Pager, Paging
from sentinel.daemon.readings import scraped_run, source_at
from sentinel.daemon.run_files import config_path, find_config, source_log_of, state_dir_of
from sentinel.daemon.run_labels import names_its_run
from sentinel.judge.analysis.smoothing import smoothed
from sentinel.plan.policy import Policy
from sentinel.sources.followed_log import FollowedLog
from sentinel.vocabulary.errors import ConfigError

__all__ = [
    "Parts",
    "Sources",
    "assemble",
    "check_pagers",
    "clock",
    "config_path",
    "delivering",
    "faults_of",
    "find_config",
    "insist_on_ground",
    "log_to_stderr",
    "neighbours_of",
    "observer_of",
    "own_of",
    "paging_of",
    "source_log_of",
    "source_of",
    "state_dir_of",
]

Sources = Callable[[Config, Path], Source]
"""Where the readings of a run come from, by its configuration and its state folder."""

clock = time.time
"""The one clock of the daemon: Unix seconds, since samples carry them."""


def source_of(config: Config, state_dir: Path) -> Source:
    """Where the run's readings come from."""
    if config.source.kind == "log":
        return FollowedLog(source_log_of(config, state_dir), format_name=config.source.format, now=clock)
    if config.source.kind == "prometheus":
        return scraped_run(config, clock)
    return Journals(state_dir)


def neighbours_of(config: Config, *, sources: Sources = source_of, queues: Queues | None = None) -> Neighbours:
    """The adapters of one run. `sources` and `queues` are for what several runs of one daemon share."""
    state_dir = state_dir_of(config)
    job_log = config.launcher.log or state_dir / "job.log"
    index = state_dir / "tensorboard-index.json"
    return Neighbours(
        state_dir=state_dir,
        source=sources(config, state_dir),
        incident_log=IncidentLog(state_dir / "incidents.jsonl"),
        checkpoints=Checkpoints(config.run.checkpoints, manifests=state_dir / MANIFESTS),
        launcher=launcher_of(config, state_dir, job_log, queues),
        approvals=Approvals(state_dir / "approvals"),
        overrides=OverridesFile(state_dir / "overrides.json"),
        tensorboard=TensorBoard(config.run.tensorboard, index) if config.run.tensorboard else None,
        job_log=job_log,
        source_log=source_log_of(config, state_dir) if config.source.kind == "log" else None,
    )


def launcher_of(config: Config, state_dir: Path, log: Path, queues: Queues | None = None) -> Launcher:
    """The launcher that the run's configuration names."""
    launcher = config.launcher
    if launcher.kind == "elsewhere":
        return ElsewhereLauncher()
    if launcher.kind == "slurm":
        settings = SlurmSettings(
            run=_unmistakable(config.run.name, state_dir),
            state_dir=state_dir,
            job_name=launcher.job_name,
            script=launcher.script,
            working_directory=launcher.working_directory.resolve(),
            changes_in_script=launcher.changes_in_script,
            sbatch_arguments=launcher.sbatch_arguments,
            own_job=os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID"),
            exclude_after_failures=launcher.exclude_after_failures,
            query_interval_s=launcher.query_interval_s,
            stop_grace_s=launcher.stop_grace_s,
        )
        client = SlurmClient(user=launcher.user, timeout_s=launcher.slurm_timeout_s)
        return SlurmLauncher(client, settings, queue=queues.of(client) if queues else None)
    return LocalLauncher(
        LocalJobs(state_dir),
        command=launcher.command,
        working_directory=launcher.working_directory,
        log=log,
        stop_grace_s=launcher.stop_grace_s,
    )


def _unmistakable(run: str, state_dir: Path) -> str:
    """The run's name with a mark of its state folder: two projects of one user may each have a run called baseline."""
    return f"{run}~{hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a command works with."""

    near: Neighbours
    observer: Observer
    ledger: Ledger
    perform: Performer
    paging: Paging


def assemble(
    config: Config,
    policy: Policy,
    *,
    say: Say,
    own: Callable[[], None] = lambda: None,
    sources: Sources = source_of,
    queues: Queues | None = None,
) -> Parts:
    """Everything for one run, put together; makes its state folder.

    `own` raises LockHeld where the run is another's by now: it is asked before each action and each line of the log.
    """
    near = neighbours_of(config, sources=sources, queues=queues)
    near.state_dir.mkdir(parents=True, exist_ok=True)
    observer = observer_of(config, near, room_for_saves=policy.room_for_saves)
    perform = Performer(near, observer, own)
    paging = paging_of(config, near)

    def append(event: Mapping[str, Any]) -> None:
        own()
        paging.append(event)

    ledger = Ledger(append, clock, say)
    return Parts(near=near, observer=observer, ledger=ledger, perform=perform, paging=paging)


def faults_of(config: Config) -> list[str]:
    """Why sentinel may not act from here on this run, as sentences: wrong account, wrong machine, wrong `user`."""
    near = neighbours_of(config)
    newest = last_beginning(near.state_dir)
    found = preconditions.faults(
        kind=config.launcher.kind,
        user=config.launcher.user,
        source=config.source.kind,
        state_dir=near.state_dir,
        checkpoints=config.run.checkpoints,
        launcher=near.launcher,
        newest=newest,
        silent_s=_silent_s(near, newest.started.attempt) if newest is not None else 0.0,
        gone_after_s=config.judge.gone_after_s,
    )
    return list(found)


def _silent_s(near: Neighbours, attempt: int) -> float:
    """How long the attempt's journal has not been written, by the clock of its filesystem."""
    signs = Signs(near.state_dir, near.checkpoints.folder).of_journals([attempt], sure_s=0.0)
    return signs[0].age_s if signs else 0.0


def insist_on_ground(config: Config) -> None:
    """ConfigError with all of them."""
    if wrong := faults_of(config):
        raise ConfigError(f"nothing is done from here: {'; '.join(wrong)}")


def own_of(config: Config, lock: RunLock) -> Callable[[], None]:
    """What is asked before each action of who holds the lock: LockHeld where the run is another's by now,
    NotOurCheckpoints where another state folder acts on them."""
    claim = Claim(config.run.checkpoints, state_dir_of(config))

    def own() -> None:
        lock.renew()
        claim.keep()

    return own


def observer_of(config: Config, near: Neighbours, *, room_for_saves: int = 0) -> Observer:
    """Who looks at the run, and knows what it is to be compared with and what was planned."""
    references = References(config.run.reference, lambda path: smoothed(str(path), source_at(path, {})))
    return Observer(
        near, config.judge, room_for_saves=room_for_saves, planned=config.run.planned_steps, references=references
    )


def paging_of(config: Config, near: Neighbours) -> Paging:
    """Follows the incident log into one outbox for each channel."""
    folder, of = near.state_dir / "pages", config.paging
    pagers = [_pager(folder, of, channel) for channel in of.channels]
    return Paging(folder, near.incident_log, pagers, run=config.run.name, runbook=of.runbook)


def check_pagers(config: Config) -> None:
    """ConfigError when a channel misses a secret: better said to the person who starts a watch than at night."""
    for described in config.paging.channels:
        channel_of(described, os.environ).check()


def _pager(folder: Path, of: settings.Paging, described: settings.Channel) -> Pager:
    name = described.name
    channel, outbox = channel_of(described, os.environ), Outbox(folder / name)
    pace = {"retry_up_to_s": of.retry_up_to_s, "give_up_after_s": of.give_up_after_s}
    delivery = Delivery(name, channel, outbox, **pace)
    return Pager(name=name, severity=described.severity, channel=channel, outbox=outbox, delivery=delivery)


@contextmanager
def delivering(paging: Paging) -> Iterator[None]:
    """Pages are delivered while the context lasts, and for a few seconds after it."""
    paging.start()
    try:
        yield
    finally:
        paging.finish()


def log_to_stderr(*, verbose: bool) -> None:
    """Logs go to stderr, so that stdout stays the answer's. Among several runs each line names its own."""
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(of_run)s%(message)s", datefmt="%H:%M:%S")
    for handler in logging.getLogger().handlers:
        handler.addFilter(names_its_run)
