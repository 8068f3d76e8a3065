"""Whether sentinel may act on a run from here: account, machine, launcher, the run's lock, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from sentinel.act import preconditions
from sentinel.act.file_activity import Signs
from sentinel.act.neighbours import Neighbours
from sentinel.adapters.checkpoints import Claim
from sentinel.adapters.journal import last_beginning
from sentinel.adapters.lock import RunLock
from sentinel.config import Config
from sentinel.daemon.run_files import state_dir_of
from sentinel.daemon.wiring import neighbours_of
from sentinel.vocabulary.errors import ConfigError


def faults_of(config: Config) -> list[str]:
    """Why sentinel may not act on this run from here, as sentences: account, machine, or [launcher] user."""
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
    return list(dict.fromkeys(found))


def _silent_s(near: Neighbours, attempt: int) -> float:
    """Seconds since the attempt's journal was written, by the clock of its filesystem."""
    signs = Signs(near.state_dir, near.checkpoints.folder).of_journals([attempt], sure_s=0.0)
    return signs[0].age_s if signs else 0.0


def check_may_act(config: Config) -> None:
    """Raises ConfigError with all of faults_of(config)."""
    if wrong := faults_of(config):
        raise ConfigError(f"nothing is done from here: {'; '.join(wrong)}")


def ownership_check(config: Config, lock: RunLock) -> Callable[[], None]:
    """A check to call before each action: LockHeld where another process has the run's lock, NotOurCheckpoints where
    another state folder acts on its checkpoints."""
    claim = Claim(config.run.checkpoints, state_dir_of(config))

    def check() -> None:
        lock.renew()
        claim.keep()

    return check
