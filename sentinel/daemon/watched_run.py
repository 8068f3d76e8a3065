"""One run under watch: locked, looked at turn by turn, and released."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Event
from time import monotonic

from sentinel.act.observation import Observation
from sentinel.act.watch import Watch
from sentinel.adapters.checkpoints import Claim
from sentinel.adapters.lock import RunLock
from sentinel.adapters.slurm import Queues
from sentinel.config import Config
from sentinel.config.run_files import clock, state_dir_of
from sentinel.daemon import wiring
from sentinel.daemon.doctor import check_before_acting
from sentinel.daemon.run_metrics import RunMetrics, Shows
from sentinel.daemon.sources import Sources
from sentinel.plan.outcome import Outcome
from sentinel.vocabulary.errors import (
    ConfigError,
    LockHeld,
    PermanentError,
    SentinelError,
    TemporaryError,
    exit_code_of,
)

log = logging.getLogger(__name__)

_TRY_AGAIN_S = 10.0  # for a run that can't be watched: its folder is missing

_run: ContextVar[str | None] = ContextVar("run", default=None)


@contextmanager
def run_prefixed(run: str | None) -> Iterator[None]:
    """Prefixes the log lines of the block, and of the threads that it starts, with the run's name; None: no prefix."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def run_prefix() -> str:
    """`NAME: ` inside run_prefixed(NAME), else the empty string."""
    run = _run.get()
    return "" if run is None else f"{run}: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    exposition: Shows
    queues: Queues
    sources: Sources
    say: Callable[[str], None]
    stop: Event  # set when the daemon is to end
    observe: bool
    once: bool
    alone: bool
    """The daemon watches one run and no other: an error that ends its watch ends the daemon; no line names the run."""
    turned: Callable[[Watched], None] = lambda _: None
    """Called after each turn, and after the run has left, in the turn's thread."""


class Watched:
    """A member of the fleet. Raises nothing: `code` is set when its watch is over, `error` when an error ended it."""

    def __init__(self, config: Config, shared: Shared) -> None:
        self.config = config
        self.code: int | None = None  # exit code of this run's watch; None while it lasts
        self.error: Exception | None = None
        self.held = False  # whether another process has its lock: the watch is over without a code
        self.well = True  # whether the watch ended as it should, so that no alert fires
        self._shared = shared
        self._prefix = None if shared.alone else config.run.name
        self._next: deque[Config] = deque(maxlen=1)
        self._lock: RunLock | None = None
        self._renewed = False  # the lock, in this turn
        self._claim: Claim | None = None
        self._locked = ExitStack()
        self._parts: wiring.Parts | None = None
        self._watching: Watch | None = None
        self._metrics: RunMetrics | None = None
        self._waits_for: str | None = None

    @property
    def pace_s(self) -> float:
        """Seconds from one turn to the next; longer while the run can't be watched."""
        pace_s = self.config.watch.poll_interval_s
        return pace_s if self._waits_for is None else max(pace_s, _TRY_AGAIN_S)

    @property
    def last(self) -> Observation | None:
        return None if self._watching is None else self._watching.last

    def reload(self, config: Config) -> None:
        """Applies another configuration of the same run at the next turn."""
        self._next.append(config)

    def turn(self, late_s: float) -> bool:
        """One turn, which begins `late_s` after it was due; returns whether another is to come."""
        goes_on = self._one_turn(late_s)
        self._shared.turned(self)
        return goes_on

    def _one_turn(self, late_s: float) -> bool:
        if self.code is not None:  # an unexpected error interrupted its end
            self._locked.close()
            return False
        with run_prefixed(self._prefix):
            try:
                done = self._turn(late_s)
            except (PermanentError, ConfigError) as error:
                self._end_by(error)
            except Exception as error:  # noqa: BLE001 - the loop's edge: it is logged, and the other runs go on
                if self._shared.alone or (self._shared.once and isinstance(error, TemporaryError)):
                    self._fail(error)
                    return False
                self._wait(error)
                self.held = isinstance(error, LockHeld)
                return not self.held
            else:
                if done is None and not self._shared.once:
                    return True
                self._end(done)
        return False

    def leave(self, within_s: float) -> None:
        """Ends the watch, in `within_s` at most: the daemon ends, or the configuration was removed."""
        with run_prefixed(self._prefix):
            parts = self._parts
            self._release(well=True)
            if parts is not None:
                parts.paging.finish(within_s)
            self.code = 0
        self._shared.turned(self)

    def _turn(self, late_s: float) -> Outcome | None:
        watching, parts = self._assembled()
        metrics = self._metrics or self._take_over(parts)
        self._waits_for = None
        now_unix_s, began_s, failures, done = clock(), monotonic(), watching.failed_turns, None
        self._renewed = False
        try:
            done = watching.tick(now_unix_s)
        except SentinelError:
            raise
        except Exception as error:  # unexpected: the daemon goes on with the next turn
            log.exception("this turn failed; the next one looks again")
            watching.failed(error, now_unix_s)
        failed = watching.failed_turns > failures
        metrics.turn(watching, done, took_s=monotonic() - began_s, late_s=late_s, failed=failed)
        parts.paging.follow()
        if done is None and not self._shared.once:
            parts.read_ahead.follow(watching.last)
        if done is None and not self._shared.once and not self._renewed and self._lock is not None:
            self._lock.renew()  # the look failed
        return done

    def _assembled(self) -> tuple[Watch, wiring.Parts]:
        """The watch and its objects, by the configuration as it is now."""
        new = self._next.pop() if self._next else self.config
        if new != self.config and self._may_change_to(new):
            if self._metrics is not None and self._parts is not None:
                self._parts.read_ahead.stop()
                self._parts.paging.finish()
                self._metrics.reload(new)
            self.config, self._watching, self._parts = new, None, None
        if self._watching is None or self._parts is None:
            self._watching, self._parts = self._assemble()
            if self._metrics is not None:
                self._parts.paging.start()
        return self._watching, self._parts

    def _may_change_to(self, new: Config) -> bool:
        """Whether the new configuration may be applied; otherwise the old one stays in force."""
        if self._parts is None or self._shared.observe or new.policy.mode == "observe":
            return True
        try:
            check_before_acting(new)
        except ConfigError as error:
            log.error("the old configuration stays in force: %s", error)
            return False
        return True

    def _assemble(self) -> tuple[Watch, wiring.Parts]:
        config, shared = self.config, self._shared
        policy = replace(config.policy, mode="observe") if shared.observe else config.policy
        if policy.mode != "observe":
            check_before_acting(config)
        self._unclaim()  # of the configuration before
        self._claim = Claim(config.run.checkpoints, state_dir_of(config)) if policy.mode != "observe" else None
        parts = wiring.assemble(
            config, policy, say=shared.say, own=self._own, sources=shared.sources, queues=shared.queues
        )
        how_often = "once" if shared.once else f"every {config.watch.poll_interval_s:g} s"
        log.info("watching %s in mode %s, %s", config.run.name, policy.mode, how_often)
        watch = Watch(parts.near, parts.observer, parts.perform, policy, parts.ledger, self._own, parts.paging.problem)
        return watch, parts

    def _own(self) -> None:
        """LockHeld: another process has the lock; NotOurCheckpoints: another state folder acts on the checkpoints."""
        if self._lock is not None:
            self._lock.renew()
            self._renewed = True
            if self._claim is not None:
                self._claim.keep()

    def _unclaim(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def _take_over(self, parts: wiring.Parts) -> RunMetrics:
        """Locks the run and shows its metrics. LockHeld where another process has the lock."""
        self._lock = self._lock or RunLock(parts.near.state_dir, at_end=self._unclaim)
        shared = self._shared
        with ExitStack() as locked:
            locked.enter_context(self._lock)
            metrics = RunMetrics(self.config, shared.exposition, observe=shared.observe, once=shared.once)
            parts.paging.start()
            self._locked = locked.pop_all()
        self._metrics = metrics
        return metrics

    def _end(self, done: Outcome | None) -> None:
        parts, last = self._parts, self.last
        self._release(well=done in (None, Outcome.FINISHED))
        self.code = int(done) if done is not None else int(last is None or last.verdict.kind in wiring.UNHEALTHY)
        if not self._shared.alone and done is not None:
            log.info("watch ended with exit code %d", self.code)
        if parts is not None and done is Outcome.PERSON_NEEDED:  # the lock is released: the person may act at once
            parts.paging.finish(self.config.paging.deliver_within_s, or_when=self._shared.stop)
        elif parts is not None:
            parts.paging.finish()

    def _end_by(self, error: Exception) -> None:
        parts = self._parts
        self._fail(error)
        if parts is not None:
            parts.paging.ended(error, clock())
            parts.paging.finish(self.config.paging.deliver_within_s, or_when=self._shared.stop)

    def _fail(self, error: Exception) -> None:
        self.error, self.code = error, exit_code_of(error)
        self._release(well=False)
        if not self._shared.alone:
            log.error("watch ended: %s", error)

    def _wait(self, error: Exception) -> None:
        """Releases a run that can't be watched now; it is tried again later."""
        parts, began = self._parts, self._metrics is not None
        if began and parts is not None:
            self._release(well=True)
            parts.paging.finish(0.0)
        if isinstance(error, LockHeld) and not began:
            log.debug("%s; it was quicker", error)
        elif str(error) != self._waits_for:
            log.warning("%s; trying again", error, exc_info=None if isinstance(error, SentinelError) else error)
        self._waits_for = str(error)

    def _release(self, *, well: bool) -> None:
        if self._parts is not None:
            self._parts.read_ahead.stop()
        if self._parts is not None and self._lock is not None:
            self._parts.observer.keep_state(at_once=True)
        metrics, self._metrics, self._watching, self._parts = self._metrics, None, None, None
        if metrics is not None:
            self.well = metrics.close(well=well)
            if self._shared.alone:
                self._shared.exposition.close(well=self.well)  # before the lock is free for another daemon
        self._locked.close()
