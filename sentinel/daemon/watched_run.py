"""One run under watch: taken up once its lock is free, looked at turn by turn, and let go."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from time import monotonic

from sentinel.act.pinning import Pinning
from sentinel.act.undo import settle
from sentinel.act.watch import Watch
from sentinel.adapters.checkpoints import Claim
from sentinel.adapters.exposition.exposition import Exposition
from sentinel.adapters.lock import RunLock
from sentinel.adapters.own_pins import OwnPins
from sentinel.adapters.slurm import Queues
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.daemon.doctor import insist
from sentinel.daemon.run_labels import speaking_of
from sentinel.daemon.shown_runs import Showing
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.look import Look, Outcome
from sentinel.vocabulary.errors import ConfigError, PermanentError, SentinelError, TemporaryError, exit_code_of

__all__ = ["NOT_WELL", "Company", "Watched"]

log = logging.getLogger(__name__)

NOT_WELL = (VerdictKind.DIVERGED, VerdictKind.STALLED, VerdictKind.DOWN)
"""Verdicts that a script is told of by exit code 1; a spike is not among them."""

_TRY_AGAIN_S = 10.0
"""Seconds until a run is tried again that could not be taken up: another daemon has its lock, or its folder is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """What the runs of one daemon share."""

    exposition: Exposition
    queues: Queues
    sources: wiring.Sources
    say: Callable[[str], None]
    stop: Event
    """The daemon was asked to end."""

    observe: bool
    once: bool
    alone: bool
    """There is one run and will be no other: what ends its watch ends the daemon, and no line has to name it."""


class Watched:
    """A run as the loop sees it. Nothing of it is raised: `code` says that the watch is over, and `error` why."""

    def __init__(self, config: Config, company: Company) -> None:
        self.config = config
        self.code: int | None = None
        """Exit code of this run's watch; None while it lasts."""

        self.error: Exception | None = None
        self.well = True
        """Whether it is let go as it should be, so that nobody is to miss it."""

        self._company = company
        self._next: deque[Config] = deque(maxlen=1)
        self._lock: RunLock | None = None
        self._claim: Claim | None = None
        self._held = ExitStack()
        self._parts: wiring.Parts | None = None
        self._watching: Watch | None = None
        self._showing: Showing | None = None
        self._waits_for: str | None = None

    @property
    def pace_s(self) -> float:
        """Seconds from one turn to the next; longer while the run can't be taken up."""
        pace_s = self.config.watch.poll_interval_s
        return pace_s if self._waits_for is None else max(pace_s, _TRY_AGAIN_S)

    @property
    def last(self) -> Look | None:
        """What the last turn has seen."""
        return None if self._watching is None else self._watching.last

    def reload(self, config: Config) -> None:
        """From the next turn on it is watched by this configuration, which is of the same run."""
        self._next.append(config)

    def turn(self, late_s: float) -> bool:
        """One turn; whether another one is to come."""
        if self.code is not None:  # its end was broken off by what nobody foresaw
            self._held.close()
            return False
        with speaking_of(self._spoken_of):
            try:
                done = self._turn(late_s)
            except (PermanentError, ConfigError) as error:
                self._end_by(error)
            except Exception as error:  # noqa: BLE001 - the loop's edge: it is logged, and the other runs go on
                if self._company.alone or (self._company.once and isinstance(error, TemporaryError)):
                    self._fail(error)
                    return False
                self._wait(error)
                return True
            else:
                if done is None and not self._company.once:
                    return True
                self._end(done)
        return False

    def leave(self, within_s: float) -> None:
        """It is watched no more: the daemon ends, or its configuration is gone."""
        with speaking_of(self._spoken_of):
            parts = self._parts
            self._let_go(well=True)
            if parts is not None:
                parts.paging.finish(within_s)
            self.code = 0

    def _turn(self, late_s: float) -> Outcome | None:
        watching, parts = self._assembled()
        showing = self._showing or self._taken_up(parts)
        self._waits_for = None
        now_unix_s, began_s, struggles, done = wiring.clock(), monotonic(), watching.struggles, None
        try:
            done = watching.tick(now_unix_s)
        except SentinelError:
            raise
        except Exception as error:  # what nobody foresaw: a daemon that is gone helps nobody
            log.exception("this turn failed; the next one looks again")
            watching.failed(error, now_unix_s)
        failed = watching.struggles > struggles
        showing.turn(watching, done, took_s=monotonic() - began_s, late_s=late_s, failed=failed)
        parts.paging.follow()
        if done is None and not self._company.once and self._lock is not None:
            self._lock.renew()
        return done

    def _assembled(self) -> tuple[Watch, wiring.Parts]:
        """What it is watched with, by the configuration as it is now."""
        new = self._next.pop() if self._next else self.config
        if new != self.config and self._may_change_to(new):
            if self._showing is not None and self._parts is not None:
                self._parts.paging.finish()
                self._showing.reload(new)
            self.config, self._watching, self._parts = new, None, None
        if self._watching is None or self._parts is None:
            self._watching, self._parts = self._assemble()
            if self._showing is not None:
                self._parts.paging.start()
        return self._watching, self._parts

    def _may_change_to(self, new: Config) -> bool:
        """Whether it may be watched by this configuration from now on; else the one that it has stays."""
        if self._parts is None or self._company.observe or new.policy.mode == "observe":
            return True
        try:
            insist(new)
        except ConfigError as error:
            log.error("the configuration stays as it was: %s", error)
            return False
        return True

    def _assemble(self) -> tuple[Watch, wiring.Parts]:
        config, company = self.config, self._company
        policy = replace(config.policy, mode="observe") if company.observe else config.policy
        if policy.mode != "observe":
            insist(config)
        self._claim = Claim(config.run.checkpoints, wiring.state_dir_of(config)) if policy.mode != "observe" else None
        parts = wiring.assemble(
            config, policy, say=company.say, own=self._own, sources=company.sources, queues=company.queues
        )
        log.info("watching %s in mode %s, every %g s", config.run.name, policy.mode, config.watch.poll_interval_s)
        pinning = Pinning(parts.near.checkpoints, OwnPins(parts.near.state_dir / "pinned-by-watch.json"))
        undo = partial(settle, near=parts.near, observer=parts.observer, ledger=parts.ledger)
        told = (self._own, parts.paging.problem)
        return Watch(parts.observer, parts.perform, pinning, policy, parts.ledger, undo, *told), parts

    def _own(self) -> None:
        """LockHeld where the run is another's by now, NotOurCheckpoints where another state folder acts on them."""
        if self._lock is not None:
            self._lock.renew()
            if self._claim is not None:
                self._claim.keep()

    def _taken_up(self, parts: wiring.Parts) -> Showing:
        """It is ours from now on. LockHeld where it is another's."""
        self._lock = self._lock or RunLock(parts.near.state_dir)
        with ExitStack() as held:
            held.enter_context(self._lock)
            company = self._company
            showing = Showing(self.config, company.exposition, observe=company.observe, once=company.once)
            parts.paging.start()
            self._held = held.pop_all()
        self._showing = showing
        return showing

    def _end(self, done: Outcome | None) -> None:
        parts, last = self._parts, self.last
        self._let_go(well=done in (None, Outcome.FINISHED))
        self.code = int(done) if done is not None else int(last is None or last.verdict.kind in NOT_WELL)
        if not self._company.alone and done is not None:
            log.info("its watch is over, with exit code %d", self.code)
        if parts is None:
            return
        if done is Outcome.PERSON_NEEDED:  # without the lock: the person may be at work already
            parts.paging.finish(self.config.paging.last_words_s, or_when=self._company.stop)
        else:
            parts.paging.finish()

    def _end_by(self, error: Exception) -> None:
        parts = self._parts
        self._fail(error)
        if parts is not None:
            parts.paging.ended(error, wiring.clock())
            parts.paging.finish(self.config.paging.last_words_s, or_when=self._company.stop)

    def _fail(self, error: Exception) -> None:
        """Its watch is over by an error: where it is the only one, the daemon's too."""
        self.error, self.code = error, exit_code_of(error)
        self._let_go(well=False)
        if not self._company.alone:
            log.error("its watch is over: %s", error)

    def _wait(self, error: Exception) -> None:
        """It can't be watched for now, and is taken up again when it can."""
        parts = self._parts
        if self._showing is not None and parts is not None:
            self._let_go(well=True)
            parts.paging.finish(0.0)
        if str(error) != self._waits_for:
            foreseen = isinstance(error, SentinelError)
            log.warning("%s; it is tried again", error, exc_info=None if foreseen else error)
        self._waits_for = str(error)

    def _let_go(self, *, well: bool) -> None:
        showing, self._showing, self._watching, self._parts = self._showing, None, None, None
        if showing is not None:
            self.well = showing.close(well=well)
            if self._company.alone:
                self._company.exposition.close(well=self.well)  # before another daemon can have the run
        self._held.close()

    @property
    def _spoken_of(self) -> str | None:
        return None if self._company.alone else self.config.run.name
