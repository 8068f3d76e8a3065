"""Builds the adapters of one run from its configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.act.following import References
from sentinel.act.judge_cache import JudgeCache
from sentinel.act.neighbours import Neighbours
from sentinel.act.observe import Observer
from sentinel.act.perform import Ledger, Performer, Say
from sentinel.adapters.checkpoints import MANIFESTS, VERIFIED, Checkpoints, Claim
from sentinel.adapters.lock import RunLock
from sentinel.adapters.mounts import is_local
from sentinel.adapters.slurm import Queues
from sentinel.adapters.state_files import Approvals, OverridesFile
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.config import Config
from sentinel.config.run_files import clock, incident_log_of, source_log_of, state_dir_of
from sentinel.daemon.launchers import launcher_of, wandb_of
from sentinel.daemon.paging import Paging, paging_of
from sentinel.daemon.preconditions import faults_of
from sentinel.daemon.read_ahead import READ_AHEAD_MB_PER_S, ReadAhead
from sentinel.daemon.sources import Sources, source_at, source_of
from sentinel.judge.history import History
from sentinel.judge.reference import smoothed
from sentinel.judge.verdict import VerdictKind
from sentinel.lab.bisect.bisect import Bisect, Bisecting
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.restart.decision import gpu_hours_left
from sentinel.vocabulary.errors import ConfigError

log = logging.getLogger(__name__)
UNHEALTHY = (VerdictKind.DIVERGED, VerdictKind.STALLED, VerdictKind.DOWN)  # exit code 1; a spike has exit code 0


def neighbours_of(config: Config, *, sources: Sources = source_of, queues: Queues | None = None) -> Neighbours:
    """The adapters of one run; `sources` and `queues` are shared by the runs of one daemon."""
    state_dir = state_dir_of(config)
    job_log = config.launcher.log or state_dir / "job.log"
    index = state_dir / "tensorboard-index.json"
    return Neighbours(
        state_dir=state_dir,
        source=sources(config, state_dir),
        incident_log=incident_log_of(config),
        checkpoints=Checkpoints(config.run.checkpoints, manifests=state_dir / MANIFESTS, verified=state_dir / VERIFIED),
        launcher=launcher_of(config, state_dir, job_log, queues),
        approvals=Approvals(state_dir / "approvals"),
        overrides=OverridesFile(state_dir / "overrides.json"),
        tensorboard=TensorBoard(config.run.tensorboard, index) if config.run.tensorboard else None,
        job_log=job_log,
        wandb=wandb_of(config, state_dir),
        source_log=source_log_of(config, state_dir) if config.source.kind == "log" else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    near: Neighbours
    observer: Observer
    ledger: Ledger
    perform: Performer
    paging: Paging
    read_ahead: ReadAhead


def assemble(
    config: Config,
    policy: Policy,
    *,
    say: Say,
    own: Callable[[], None] = lambda: None,
    sources: Sources = source_of,
    queues: Queues | None = None,
    near: Neighbours | None = None,
) -> Parts:
    """Builds all objects of one run, but for the adapters in `near`; creates its state folder.

    `own` raises LockHeld where another process has the run's lock: called before each action and each event.
    """
    near = near or neighbours_of(config, sources=sources, queues=queues)
    near.state_dir.mkdir(parents=True, exist_ok=True)
    observer = observer_of(config, near, room_for_saves=policy.room_for_saves)
    observer.bisects = bisecting_of(config, observer)
    perform = Performer(near, observer, own)
    paging = paging_of(config, near)

    def append(event: IncidentEvent) -> None:
        own()
        paging.append(event)

    ledger = Ledger(append, clock, say)
    return Parts(
        near=near,
        observer=observer,
        ledger=ledger,
        perform=perform,
        paging=paging,
        read_ahead=read_ahead_of(config, near),
    )


def read_ahead_of(config: Config, near: Neighbours) -> ReadAhead:
    """Reads nothing where `[watch] read_ahead_mb_per_s` is 0, or is not set and the filesystem may be shared."""
    asked = config.watch.read_ahead_mb_per_s
    if asked is None:
        asked = READ_AHEAD_MB_PER_S if is_local(config.run.checkpoints) else 0.0
    return ReadAhead(near.checkpoints, 1e6 * asked)


def assemble_to_act(config: Config, say: Say, progress: Callable[[float], None] | None = None) -> tuple[Parts, RunLock]:
    """The objects of a command that acts on the run, and the lock that it has to take. `progress` is called with the
    share that is done of a look at the checkpoints.

    ConfigError with all of `faults_of`. LockHeld before an action where another process has the run's lock,
    NotOurCheckpoints where another state folder acts on its checkpoints.
    """
    near = neighbours_of(config)
    near.checkpoints.progress = progress
    if wrong := faults_of(config, near):
        raise ConfigError(f"nothing is done from here: {'; '.join(wrong)}")
    claim = Claim(config.run.checkpoints, state_dir_of(config))
    lock = RunLock(state_dir_of(config), at_end=claim.release)

    def own() -> None:
        lock.renew()
        claim.keep()

    return assemble(config, config.policy, say=say, own=own, near=near), lock


def bisecting_of(config: Config, observer: Observer) -> Bisecting:
    def make(incident: Incident, history: History, facts: Facts) -> Bisect:
        from sentinel.daemon.probes import bisect_about  # few ladders have such a rung

        left = gpu_hours_left(facts, config.policy)
        return bisect_about(config, incident, history, facts, observer.started, log.info, left)

    return Bisecting(make)


def observer_of(config: Config, near: Neighbours, *, room_for_saves: int = 0) -> Observer:
    references = References(config.run.reference, lambda path: smoothed(str(path), source_at(path, {})))
    judged_by = (config.run.name, config.run.planned_steps, config.run.reference)
    return Observer(
        near,
        config.judge,
        name=config.run.name,
        room_for_saves=room_for_saves,
        planned=config.run.planned_steps,
        references=references,
        policy=config.policy,
        cache=JudgeCache(near.state_dir, config.judge, judged_by) if config.source.kind == "journal" else None,
    )
