"""The loop's one turn: observe, ask `plan.turn` what is to be done, do it, record it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from sentinel.act.last_lines import with_last_lines
from sentinel.act.neighbours import Neighbours
from sentinel.act.observe import Observer
from sentinel.act.past import Past
from sentinel.act.perform import Ledger, Perform, Pinning, execute
from sentinel.act.undo import settle
from sentinel.adapters.state_files import OwnPins
from sentinel.plan.alerts import failed_look
from sentinel.plan.incident import Event
from sentinel.plan.policy import Policy
from sentinel.plan.turn import Failure, Look, Memory, Outcome, Turn, next_turn
from sentinel.vocabulary.errors import ConfigError, FilesystemRefused, PermanentError, SentinelError, TemporaryError

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Watch:
    """Follows one run. `tick` makes one turn; it returns why the watch has ended, or None while it goes on. `own` is
    called after each look, which may take an hour and more: it raises LockHeld where another sentinel has taken the
    run's lock meanwhile."""

    near: Neighbours
    observer: Observer
    perform: Perform
    policy: Policy
    ledger: Ledger
    own: Callable[[], None] = lambda: None
    paging_problem: Callable[[], str | None] = lambda: None
    last: Look | None = field(default=None, init=False)  # what the last turn saw
    failed_turns: int = field(default=0, init=False)  # turns so far that had an error
    _past: Past = field(default_factory=Past, init=False)
    _memory: Memory = field(default_factory=Memory, init=False)

    def __post_init__(self) -> None:
        self._pinning = Pinning(self.near.checkpoints, OwnPins(self.near.state_dir))

    def tick(self, now_unix_s: float) -> Outcome | None:
        """One turn. A TemporaryError is tried again, and alerted to when it lasts; a PermanentError needs a person."""
        try:
            look = self.observer.look(now_unix_s)
        except TemporaryError as error:
            log.warning("%s; looking again", error)
            self._record_failure(str(error), now_unix_s)
            return None
        self.own()
        self.last = look = replace(look, memory=self._memory, paging_problem=self.paging_problem())
        try:
            self.observer.keep_jobs()
            look = self._past.read(look, self.policy, self.observer.script_refusal)
            turn = next_turn(look, self.policy)
            self._do(turn, look)
        except TemporaryError as error:
            log.warning("%s; trying again", error)
            turn = next_turn(replace(look, failure=Failure(reason=str(error))), self.policy)
        except FilesystemRefused:  # the decision is in the incident log: it is carried out after a repair
            raise
        except (PermanentError, ConfigError) as error:
            turn = next_turn(replace(look, failure=Failure(reason=str(error), permanent=True)), self.policy)
            if turn.outcome is None:
                raise
            self._record(turn.records, look)
        self._record(turn.alert_records, look)
        self._memory, self.failed_turns = turn.memory, self.failed_turns + turn.failing
        return turn.outcome

    def failed(self, error: Exception, now_unix_s: float) -> None:
        """A turn ended with an unforeseen error: tried again, and told when it lasts."""
        try:
            self._record_failure(f"the watch's turns fail: {error!r}", now_unix_s)
        except (OSError, SentinelError) as failure:
            log.error("the failure can't be recorded in the incident log: %s", failure)

    def _record(self, events: Iterable[Event], look: Look) -> None:
        self.ledger.record_all(with_last_lines(events, look, self.near.job_log))

    def _record_failure(self, reason: str, now_unix_s: float) -> None:
        self.failed_turns += 1
        records, self._memory = failed_look(reason, self._memory, self.policy, now_unix_s, last=self.last)
        self.ledger.record_all(records)

    def _do(self, turn: Turn, look: Look) -> None:
        for note in turn.notes:
            log.info("%s", note)
        settle(turn.undo, self.near, self.observer, self.ledger)
        self._pinning.keep(turn.pins)
        if turn.message is not None:
            self.ledger.say(turn.message)
        self._record(turn.records, look)
        execute(turn, look.newest_attempt, self.perform, self.ledger)
