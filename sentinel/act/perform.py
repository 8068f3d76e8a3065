"""Does one action through the adapters, with events of the incident log around it."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from sentinel.act.neighbours import Neighbours
from sentinel.act.observe import Observer
from sentinel.act.parked_trainer import ParkedTrainer
from sentinel.adapters.state_files import OwnPins
from sentinel.durable import os_errors_named, write_atomically
from sentinel.plan.alerts.sentences import sentence
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_outcomes import (
    ActionEvent,
    Applied,
    Done,
    Failed,
    InPlaceGivenUp,
    Intent,
    RecordedAction,
)
from sentinel.plan.outcome import Turn
from sentinel.plan.restart.actions import (
    Action,
    AskForSave,
    BranchWandb,
    CutTensorBoard,
    FollowBisect,
    Park,
    PointLatest,
    PrepareJob,
    QuarantineCheckpoints,
    Release,
    RestorePinned,
    Resume,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
    describe,
    to_json,
)
from sentinel.plan.restart.liveness import quiet_left_s, settles
from sentinel.plan.restart.rollback import plan_rollback
from sentinel.vocabulary.errors import JobStillAlive, PermanentError, SentinelError, TemporaryError
from sentinel.vocabulary.numbers import dump_json

log = logging.getLogger(__name__)
Say = Callable[[str], None]  # shows the person at the terminal one line


_MOST_QUIET = 10  # quiet times that a command waits for, at most
_SECONDS = re.compile(r"\b\d+(?:\.\d+)? s\b")


def without_seconds(line: str) -> str:
    """The line without its ages and waits: two lines that differ by these alone say the same."""
    return _SECONDS.sub("… s", line)


class Ledger:
    """The incident log, as a watch or a command writes it."""

    def __init__(self, append: Callable[[IncidentEvent], None], clock: Callable[[], float], say: Say) -> None:
        self._append = append
        self._clock = clock
        self._say = say
        self._last_line: str | None = None

    def say(self, line: str) -> None:
        """Says a line, unless it was the last one said, apart from the seconds in it: ages and waits count on."""
        if (reason := without_seconds(line)) != self._last_line:
            self._last_line = reason
            self._say(line)

    def record(self, event: IncidentEvent) -> None:
        """One event, with the time; returns when it is on the disk. An action was described when it began."""
        self._append(replace(event, time_unix_s=self._clock()))
        line = None if isinstance(event, ActionEvent) else sentence(event)
        if line is not None:
            self.say(f"{event.incident}: {line}" if event.incident else line)

    def record_all(self, events: Iterable[IncidentEvent]) -> None:
        for each in events:
            self.record(each)


def quarantine(tags: tuple[str, ...], near: Neighbours, incident: str, rollback: str) -> None:
    """Moves checkpoints into the quarantine; the watch's own pins of them go, for else another line's checkpoint would
    stay pinned under a tag that is to be saved again. A pin that can't be let go hinders nothing."""
    for tag in {*tags} & {*OwnPins(near.state_dir).read()} & {*near.checkpoints.pins.usable()}:
        try:
            near.checkpoints.pins.let_go(tag)
        except (SentinelError, OSError) as error:
            log.warning("%s stays pinned: %s", tag, error)
    near.checkpoints.quarantine(tags, incident=incident, rollback=rollback)


Perform = Callable[[Action], None]  # returns when the action's effect has been seen; else raises a SentinelError
_LOOKS_AGAIN_S = 2.0  # between two looks of a command at a trainer that has not taken RESUME
_MOST_ACTIONS = 50  # a plan has at most seven actions; more turns than this mean that an effect is not seen


@dataclass(eq=False)
class Performer:
    """`__call__` is a `Perform`. `own` raises LockHeld where another sentinel has the run by now. Before anything is
    moved it is looked once more whether the job is gone, and the run still ours: the plan was made a moment ago, or an
    hour, where a filesystem hung."""

    neighbours: Neighbours
    observer: Observer
    own: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._trainer = ParkedTrainer(self.neighbours.state_dir, self.observer.fence.not_parked)

    def __call__(self, action: Action) -> None:
        near, started = self.neighbours, self.observer.started
        self._fence(action)
        self.own()
        match action:
            case VerifyCheckpoint(tag):
                self._verify(tag)
            case RestorePinned(tag):
                near.checkpoints.pins.restore(tag)
            case PrepareJob(_, rollback, overrides):
                near.launcher.prepare(rollback, started, overrides)
            case StopJob(_, except_for, keep_stacks):
                if keep_stacks:
                    near.launcher.keep_stacks(near.state_dir / "stacks")
                near.launcher.stop(started, except_for)
            case QuarantineCheckpoints(tags, incident, rollback):
                quarantine(tags, near, incident, rollback)
                self.observer.folders.forget(tags)
            case PointLatest(tag, global_step, incident, rollback, _):
                near.checkpoints.point_latest(tag, global_step, incident=incident, rollback=rollback)
            case CutTensorBoard() | BranchWandb():
                self._cut(action)
            case WriteOverrides() | AskForSave() | Park() | Resume() | Release():
                self._tell_trainer(action)
            case StartJob(incident, rollback, follow_up):
                near.launcher.start(incident, rollback, started, follow_up=follow_up)
            case FollowBisect(incident):
                self._follow_bisect(incident)
            case _:
                assert_never(action)

    def _verify(self, tag: str) -> None:
        verified = self.neighbours.checkpoints.verify(tag)
        if verified.verification is not None and verified.problem is None:
            log.info("%s is verified: %s", tag, verified.verification.sentence)
        elif verified.verified is None:
            log.warning("%s is still to be verified: %s", tag, verified.problem)
        self.observer.folders.verified(verified)

    def _fence(self, action: Action) -> None:
        """JobStillAlive before anything moves, or a second job begins, unless all but the rollback's own is gone. Files
        also move while the trainer is parked for the rollback: `Resume` looks for that by itself."""
        if isinstance(action, QuarantineCheckpoints | PointLatest | CutTensorBoard | BranchWandb):
            self.observer.fence.check(action.rollback, or_parked=True)
        elif isinstance(action, StartJob):
            self.observer.fence.check(action.rollback)
        elif isinstance(action, FollowBisect):  # the job's nodes are the probes'
            self.observer.fence.check(None)
        elif isinstance(action, WriteOverrides):
            self.observer.fence.check(action.overrides.rollback, or_parked=True)

    def _tell_trainer(self, action: WriteOverrides | AskForSave | Park | Resume | Release) -> None:
        match action:
            case WriteOverrides(overrides):
                self.neighbours.overrides.write(overrides)
            case AskForSave():
                write_atomically(self.neighbours.state_dir / "SAVE", dump_json(to_json(action)))
            case Park():
                self.observer.keep_jobs()  # a trainer that dies parked takes its job with it, and Slurm forgets that
                self._trainer.park(action)
            case Resume():
                self._trainer.resume(action)
            case Release():
                self._trainer.release(action)

    def _follow_bisect(self, incident: str) -> None:
        if self.observer.bisects is not None:
            self.observer.bisects.follow(incident)

    def _cut(self, action: CutTensorBoard | BranchWandb) -> None:
        if isinstance(action, BranchWandb):
            if self.neighbours.wandb is not None:
                self.neighbours.wandb.begin(action)
        elif self.neighbours.tensorboard is not None:
            report = self.neighbours.tensorboard.cut(
                action.at,
                incident=action.incident,
                rollback=action.rollback,
                parked=self.observer.fence.parked_process(),
            )
            for sentence in report.sentences():
                log.warning("TensorBoard: %s", sentence)


def execute(turn: Turn, newest_attempt: int | None, act: Perform, ledger: Ledger) -> None:
    """Performs the turn's action, recorded before and after, and raises what it raised. `newest_attempt` is the last
    that was known: what a later one does has come after the action, by whatever clock."""
    for action in turn.actions:
        if not turn.on_record:
            with os_errors_named("a file of the run"):
                act(action)
            continue
        ledger.say(describe(action))
        incident, rollback, doing = turn.incident, turn.rollback, RecordedAction.from_json(to_json(action))
        ledger.record(Intent(incident=incident, rollback=rollback, action=doing, newest_attempt=newest_attempt))
        try:
            with os_errors_named("a file of the run"):
                act(action)
        except Exception as error:
            # Also what nobody foresaw: an intent without an end would look like a daemon that was killed.
            reason = str(error) if isinstance(error, SentinelError) else repr(error)
            with contextlib.suppress(SentinelError):  # a full disk has no room for the log either: say what came first
                ledger.record(Failed(incident=incident, rollback=rollback, action=doing, reason=reason))
            raise
        ledger.record(Done(incident=incident, rollback=rollback, action=doing))


def wait_until_quiet(observer: Observer, except_for: str | None, say: Say) -> None:
    """For a command: returns once the checkpoints are quiet; at once where a job of the run is seen. Says once what it
    waits for. JobStillAlive where something goes on writing."""
    waited_s, told = 0.0, False
    while (
        left_s := quiet_left_s(found := observer.look(time.time(), fresh=True).facts.liveness, except_for=except_for)
    ) > 0:
        why = settles(found, except_for=except_for) or ""
        if waited_s > _MOST_QUIET * found.quiet_s:
            raise JobStillAlive(why)
        if not told:
            say(f"{why}; waiting")
        pause_s, told = min(left_s, 1.0) + 0.05, True
        time.sleep(pause_s)
        waited_s += pause_s


def carry_out(
    rollback: Rollback, observer: Observer, act: Perform, policy: Policy, ledger: Ledger, now_unix_s: float
) -> None:
    """Carries a person's own rollback out to its end, action by action; a trainer that does not park in time, does not
    take RESUME, or dies while it is parked, is followed by a new job. PermanentError with the refusal."""
    began_s, not_taken = time.monotonic(), False
    for _ in range(_MOST_ACTIONS):
        wait_until_quiet(observer, rollback.id, ledger.say)
        look = observer.look(now_unix_s + time.monotonic() - began_s, fresh=True)
        recorded = next((r for i in look.facts.incidents for r in i.rollbacks if r.id == rollback.id), rollback)
        plan = plan_rollback(recorded, look.facts, policy)
        incident = rollback.overrides.incident
        if plan.gives_up is not None:
            ledger.record(InPlaceGivenUp(incident=incident, rollback=rollback.id, reason=plan.gives_up))
            continue
        if plan.refusal is not None:
            raise TemporaryError(plan.refusal) if plan.waits else PermanentError(plan.refusal)
        parked = look.facts.liveness.parked
        if not plan.actions and not_taken and parked is not None and parked.rollback == rollback.id:
            time.sleep(_LOOKS_AGAIN_S)  # alive, and it has not taken RESUME: given up in time
            continue
        if not plan.actions:
            ledger.record(Applied(incident=incident, rollback=rollback.id))
            return
        turn = Turn(reason=plan.reason, actions=plan.actions[:1], incident=incident, rollback=rollback.id)
        not_taken = False
        try:
            execute(turn, look.facts.newest_attempt, act, ledger)
        except JobStillAlive:
            if not isinstance(plan.actions[0], Park | Resume):
                raise
            not_taken = isinstance(plan.actions[0], Resume)
    raise PermanentError(f"{rollback.id}: the same actions are planned again and again; their effect is not seen")
