"""Does one action through the adapters, and returns when its effect has been seen.

Before anything is moved it is looked once more whether the job is gone, and the run still ours: the plan was made a
moment ago, or an hour, where a filesystem hung.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import assert_never

from sentinel.act.observe import Neighbours, Observer
from sentinel.plan.actions import (
    Action,
    CutTensorBoard,
    PointLatest,
    PrepareJob,
    QuarantineCheckpoints,
    RestorePinned,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
)

__all__ = ["Performer"]

log = logging.getLogger(__name__)


class Performer:
    """The hands of a watch; `__call__` is a `Perform`."""

    def __init__(self, neighbours: Neighbours, observer: Observer, own: Callable[[], None] = lambda: None) -> None:
        """`own` raises LockHeld where another sentinel has the run by now."""
        self._near = neighbours
        self._observer = observer
        self._own = own

    def __call__(self, action: Action) -> None:
        near, started = self._near, self._observer.started
        self._fence(action)
        self._own()
        match action:
            case VerifyCheckpoint(tag):
                self._observer.verified(near.checkpoints.verify(tag))
            case RestorePinned(tag):
                near.checkpoints.pins.restore(tag)
            case PrepareJob(_, rollback, overrides):
                near.launcher.prepare(rollback, started, overrides)
            case StopJob(_, spare, keep_stacks):
                if keep_stacks:
                    near.launcher.keep_stacks(near.state_dir / "stacks")
                near.launcher.stop(started, spare)
            case QuarantineCheckpoints(tags, incident, rollback):
                near.checkpoints.quarantine(tags, incident=incident, rollback=rollback)
                self._observer.forget(tags)
            case PointLatest(tag, global_step, incident, rollback):
                near.checkpoints.point_latest(tag, global_step, incident=incident, rollback=rollback)
            case CutTensorBoard():
                self._cut(action)
            case WriteOverrides(overrides):
                near.overrides.write(overrides)
            case StartJob(incident, rollback, follow_up):
                near.launcher.start(incident, rollback, started, follow_up=follow_up)
            case _:
                assert_never(action)

    def _fence(self, action: Action) -> None:
        """JobStillAlive before anything moves, or a second job begins, unless all but the rollback's own is gone."""
        if isinstance(action, QuarantineCheckpoints | PointLatest | CutTensorBoard | StartJob):
            self._observer.fenced(action.rollback)
        elif isinstance(action, WriteOverrides):
            self._observer.fenced(action.overrides.rollback)

    def _cut(self, action: CutTensorBoard) -> None:
        if self._near.tensorboard is not None:
            report = self._near.tensorboard.cut(action.at, incident=action.incident, rollback=action.rollback)
            for sentence in report.sentences():
                log.warning("TensorBoard: %s", sentence)
