"""The loop's one turn: observe, ask `plan.turn` what is to be done, do it, record it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sentinel.act.kept_turns import KeptTurns
from sentinel.act.last_lines import with_last_lines
from sentinel.act.neighbours import Neighbours
from sentinel.act.observation import Observation
from sentinel.act.observe import Observer
from sentinel.act.parked_trainer import ParkedTrainer
from sentinel.act.past import PastReader
from sentinel.act.perform import Ledger, Perform, execute, without_seconds
from sentinel.act.pinning import Pinning
from sentinel.act.undo import settle
from sentinel.act.wall_clock import WallClock
from sentinel.adapters.state_files import OwnPins
from sentinel.plan.alerts.alerts import failed_look
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.turn import Facts, Failure, Memory, Outcome, Turn, decide
from sentinel.vocabulary.errors import ConfigError, FilesystemRefused, PermanentError, SentinelError, TemporaryError

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Watch:
    """Follows one run. `tick` makes one turn; it returns why the watch has ended, or None while it goes on. `own` is
    called after a look, which may take an hour: LockHeld where another sentinel has taken the run's lock meanwhile."""

    near: Neighbours
    observer: Observer
    perform: Perform
    policy: Policy
    ledger: Ledger
    own: Callable[[], None] = lambda: None
    paging_problem: Callable[[], str | None] = lambda: None
    last: Observation | None = field(default=None, init=False)  # what the last turn saw
    failed_turns: int = field(default=0, init=False)  # turns so far that had an error
    _warned: str | None = field(default=None, init=False)  # the last line that was warned of, without its ages
    _past: PastReader = field(default_factory=PastReader, init=False)
    _memory: Memory = field(default_factory=Memory, init=False)
    _wall: WallClock = field(default_factory=WallClock, init=False)

    def __post_init__(self) -> None:
        self._trainer = ParkedTrainer(self.near.state_dir, self.observer.fence.not_parked)
        self._turns = KeptTurns(self.near.state_dir / "turns")
        self._pinning = Pinning(self.near.checkpoints, OwnPins(self.near.state_dir))

    def tick(self, now_unix_s: float) -> Outcome | None:
        """One turn. A TemporaryError is tried again, and alerted to when it lasts; a PermanentError needs a person."""
        now_unix_s = self._with_clock(now_unix_s)
        try:
            look = self.observer.look(now_unix_s)
        except TemporaryError as error:
            self._warn(f"{error}; looking again")
            self._record_failure(str(error), now_unix_s)
            return None
        self.own()
        try:
            self._trainer.tidy(look.facts)
            self.observer.keep_jobs()
            look, turn = self._decided(look)
            if turn.does:  # what earlier looks remember of the checkpoints may not count
                look, turn = self._decided(self.observer.look(look.facts.now_unix_s, fresh=True))
            self._turns.keep(look.facts, self.policy, self._memory, turn)
            self._do(turn, look)
        except TemporaryError as error:
            self._warn(f"{error}; trying again")
            turn = self._keep(look.known(failure=Failure(reason=str(error))).facts)
        except FilesystemRefused:  # the decision is in the incident log: it is carried out after a repair
            raise
        except (PermanentError, ConfigError) as error:
            turn = self._keep(look.known(failure=Failure(reason=str(error), permanent=True)).facts)
            if turn.outcome is None:
                raise
            self._record(turn.records, look)
        self._record(turn.alert_records, look)
        self._memory, self.failed_turns = turn.memory, self.failed_turns + turn.failing
        return turn.outcome

    def _with_clock(self, now_unix_s: float) -> float:
        """Now. Where the wall clock was set since the last turn, what is wrong has lasted as long as before."""
        set_by_s, _ = self._wall.set_by_s()
        if not set_by_s:
            return now_unix_s
        log.warning("the wall clock was set by %+.0f s: ages and waits go on by the monotonic clock", set_by_s)
        self._memory = self._memory.shifted(set_by_s)
        return self._wall.now_unix_s

    def failed(self, error: Exception, now_unix_s: float) -> None:
        """A turn ended with an unforeseen error: it is tried again, and reported when it lasts."""
        try:
            self._record_failure(f"the watch's turns fail: {error!r}", now_unix_s)
        except (OSError, SentinelError) as failure:
            log.error("the failure can't be recorded in the incident log: %s", failure)

    def _decided(self, look: Observation) -> tuple[Observation, Turn]:
        self.last = look.known(paging_problem=self.paging_problem())
        look = self._past.read(self.last, self.policy, self.observer.script_refusal)
        return look, decide(look.facts, self.policy, self._memory)

    def _keep(self, facts: Facts) -> Turn:
        """The turn that follows from these facts, which are kept with it."""
        turn = decide(facts, self.policy, self._memory)
        self._turns.keep(facts, self.policy, self._memory, turn)
        return turn

    def _warn(self, line: str) -> None:
        """One line when the reason changes; an age in it that counts on is no change."""
        log.log(logging.DEBUG if (reason := without_seconds(line)) == self._warned else logging.WARNING, "%s", line)
        self._warned = reason

    def _record(self, events: Iterable[IncidentEvent], look: Observation) -> None:
        self.ledger.record_all(with_last_lines(events, look, self.near.job_log))

    def _record_failure(self, reason: str, now_unix_s: float) -> None:
        self.failed_turns += 1
        last = self.last.facts if self.last is not None else None
        events, self._memory = failed_look(reason, self._memory, self.policy, now_unix_s, last=last)
        self.ledger.record_all(events)

    def _do(self, turn: Turn, look: Observation) -> None:
        for note in turn.notes:
            log.info("%s", note)
        settle(turn.undo, self.near, self.observer, self.ledger)
        self._pinning.keep(turn.pins)
        if turn.message is not None:
            self.ledger.say(turn.message)
        self._record(turn.records, look)
        execute(turn, look.facts.newest_attempt, self.perform, self.ledger)
